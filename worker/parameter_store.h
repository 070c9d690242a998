#pragma once

#include "planner/demand.h"
#include "runtime/base/memory_kind.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

/// Where a worker's parameters live. The engine owns them; Sluice writes them during a sync, in load layout. What the engine keeps in another
/// format has no place here: it lands in a buffer of its layer, and a LayerHook takes it from there.
struct ParameterStore {
    /// Memory that is registered as one region. Several parameters may share a block.
    struct Block {
        std::byte* data = nullptr;
        std::int64_t bytes = 0;
        MemoryKind kind = MemoryKind::kHost;
    };
    struct Place {
        int block = 0;
        std::int64_t offset = 0;  ///< Of the parameter's first byte; the parameter is contiguous.
    };
    static constexpr int kLayerBuffer = -1;
    /// The place of a parameter that lands in a layer buffer.
    static constexpr Place in_layer_buffer() { return {kLayerBuffer, 0}; }

    std::vector<Block> blocks;
    std::vector<Place> places;  ///< By ParameterId of the demand.

    [[nodiscard]] bool buffered(ParameterId parameter) const {
        return places[static_cast<std::size_t>(parameter)].block == kLayerBuffer;
    }
    /// Of a parameter that is not buffered.
    [[nodiscard]] std::byte* address(ParameterId parameter) const {
        const Place& place = places[static_cast<std::size_t>(parameter)];
        return blocks[static_cast<std::size_t>(place.block)].data + place.offset;
    }
};

}  // namespace sluice

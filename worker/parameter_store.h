#pragma once

#include "planner/demand.h"
#include "runtime/base/memory_kind.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

/// Where a worker's parameters live. The engine owns them; Sluice writes them during a sync, in load layout.
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

    std::vector<Block> blocks;
    std::vector<Place> places;  ///< By ParameterId of the demand.

    [[nodiscard]] std::byte* address(ParameterId parameter) const {
        const Place& place = places[static_cast<std::size_t>(parameter)];
        return blocks[static_cast<std::size_t>(place.block)].data + place.offset;
    }
};

}  // namespace sluice

#pragma once

#include "runtime/base/status.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// Where an engine that rebalances its experts keeps them: the logical expert of each physical slot, by layer, as vLLM's
/// EPLB has it (physical_to_logical_map). Slots lie on the ranks of a pool in linear placement. Layers that are not named have
/// the initial map.
struct ExpertMap {
    std::map<int, std::vector<std::int64_t>> layers;  ///< By number of the layer, counted from 0 over the whole model.

    /// {"physical_to_logical": {"3": [0, 1, 2, 3, 0], ...}}. Refuses (invalid argument) another form; whether it fits a model and
    /// a layout is seen when its loader runs.
    static Result<ExpertMap> parse(std::string_view json);
    [[nodiscard]] bool empty() const { return layers.empty(); }
    /// XXH3-64 over layers and slots.
    [[nodiscard]] std::uint64_t digest() const;

    friend bool operator==(const ExpertMap&, const ExpertMap&) = default;
};

/// Refuses (invalid argument) a layer's map that does not fill `slots` slots, names an expert beyond `experts`, or has no slot
/// for one.
Status check_expert_slots(const std::vector<std::int64_t>& map, int layer, std::int64_t experts, std::int64_t slots);

}  // namespace sluice

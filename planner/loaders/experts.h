#pragma once

#include "planner/loaders/load_context.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::rules {

/// Which experts a rank holds, and which part of each.
struct ExpertShare {
    std::vector<std::int64_t> experts;  ///< Expert of each local slot; redundant slots repeat one.
    Split width;                        ///< Of each expert's width; one piece when experts are spread whole.
};

/// ep on: experts + redundant physical slots are placed on the pool's ranks, linear (the first ranks take one more) or,
/// for models with several expert groups and without redundant slots, round robin. ep off: every expert is cut by the
/// pool's ranks.
/// With an expert map of the layer at `path`, slots hold what it says.
ExpertShare expert_share(LoadContext& load, std::string_view path, std::int64_t experts,
                         std::int64_t expert_groups = 1);

/// Routed experts with one tensor each per projection: path + "3." + gate. `path` ends with "experts.".
struct RoutedExperts {
    std::string path;
    std::int64_t count;
    std::int64_t width;
    std::int64_t hidden;
    std::int64_t groups = 1;
    std::string gate = "gate_proj";
    std::string up = "up_proj";
    std::string down = "down_proj";
};
/// path + w13_weight [slots, 2 * width, hidden] (gate rows, then up rows) and path + w2_weight [slots, hidden, width],
/// with block scales when the checkpoint has them. Takes fused tensors (path + gate_up_proj [E, 2M, H] or [E, H, 2M],
/// path + down_proj) where the checkpoint has those instead; a shape that fits both orientations is refused.
void routed_experts(LoadContext& load, const RoutedExperts& experts);

/// Copies the rank's experts of `source` [E, ...] into `destination` [slots, ...].
void fused_experts(const RecordingParameter& destination, const RecordingTensor& source, const ExpertShare& share);

}  // namespace sluice::rules

#pragma once

#include "planner/expert_map.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

enum class TrainerFormat : std::uint8_t { kHf, kMegatron };

/// How trainer ranks hold the model: the text form is "tp=4,pp=2,dp=2,ep=8[,etp=1][,format=hf|megatron][,stages=a/b/c]"
/// or "fsdp=N[,tp=..][,dp=..]". Rank order: tp fastest, then (fsdp, then) dp, then pp. Experts are cut from the same order
/// inside a stage: etp fastest, then ep, then expert data parallel.
struct TrainerLayout {
    int tp = 1;
    int pp = 1;
    int dp = 1;
    int ep = 1;
    int etp = 1;
    int fsdp = 1;
    TrainerFormat format = TrainerFormat::kHf;
    std::vector<int> stages;  ///< Layers of each stage; empty = as evenly as possible, earlier stages taking one more.

    /// Refuses unknown keys, values below 1, ep*etp that does not divide tp*dp, and fsdp with pp, ep, etp or megatron.
    static Result<TrainerLayout> parse(std::string_view text);
    [[nodiscard]] std::string to_string() const;
    [[nodiscard]] int world_size() const { return tp * pp * dp * fsdp; }

    struct Coordinates {
        int tp, fsdp, dp, pp;
        int etp, ep, edp;  ///< In the expert grid of the rank's stage.
    };
    [[nodiscard]] Coordinates coordinates(int rank) const;
    /// First layer of each stage and, last, the number of layers: stage s holds [result[s], result[s + 1]).
    /// Refuses `stages` that do not add up, and more stages than layers.
    [[nodiscard]] Result<std::vector<int>> stage_bounds(int layers) const;
};

enum class ExpertPlacement : std::uint8_t { kLinear, kRoundRobin };

/// How one pool of inference workers holds the model: "tp=2,dp=1,ep=on,replicas=2[,placement=linear|round_robin][,redundant=N]".
/// Rank order: tp fastest, then dp, then replica. A pool rank (dp_rank * tp + tp_rank) is a rank within one replica.
struct WorkerLayout {
    int tp = 1;
    int dp = 1;
    bool ep = false;  ///< Experts are spread whole over the tp*dp ranks of a replica; off: each expert is cut by tp*dp.
    int replicas = 1;
    ExpertPlacement placement = ExpertPlacement::kLinear;
    int redundant = 0;  ///< Redundant physical expert slots.
    /// Given apart from the text form, which has no key for it. Needs ep=on and linear placement.
    ExpertMap expert_map = {};

    static Result<WorkerLayout> parse(std::string_view text);
    /// With an expert map, its digest stands in the place of a key.
    [[nodiscard]] std::string to_string() const;
    [[nodiscard]] int pool_size() const { return tp * dp; }
    [[nodiscard]] int world_size() const { return tp * dp * replicas; }
};

}  // namespace sluice

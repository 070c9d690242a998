#pragma once

#include "planner/catalogue.h"
#include "planner/model_config.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

/// How trainers cut one checkpoint tensor among the ranks that share a layer. Says nothing about where the pieces lie.
struct ShardRule {
    enum class Cut : std::uint8_t {
        kWhole,  ///< Every rank of the grid holds everything.
        kUnits,  ///< Equal runs of whole units (heads, pairs, rows).
        kChunk,  ///< Runs of ceil(extent / ranks): the last ones short or empty (vocabulary).
    };
    Cut cut = Cut::kWhole;
    int axis = 0;
    std::int64_t units = 0;  ///< kUnits: number of indivisible units on the axis (of one part).
    bool repeats = false;    ///< kUnits: with more ranks than units, adjacent ranks hold the same unit (KV heads).
    int parts = 1;           ///< kUnits: equal parts of the axis that are cut one by one (gate and up in one tensor).
    std::int64_t block = 1;  ///< Elements of the weight that one element on the axis stands for (block scales).
    std::int64_t cut_extent = 0;  ///< Extent of the axis, in elements of the weight.

    static constexpr int kDense = -1;
    static constexpr int kFusedExperts = -2;
    /// kDense: cut over tp. An expert's number, or kFusedExperts (axis 0 counts them): spread over ep, cut over etp.
    int expert = kDense;

    [[nodiscard]] bool is_expert() const { return expert != kDense; }
};

/// Numbers of the config on which the rules depend.
struct HeadCounts {
    std::int64_t query = 0;
    std::int64_t key_value = 0;
    std::int64_t experts = 0;        ///< 0 for dense models.
    std::int64_t scale_block = 128;  ///< Side of the blocks that share one fp8 scale.
    std::int64_t hidden = 0;
    bool expert_pairs = false;  ///< Fused gate_up holds gate and up in turns (gpt-oss), not in halves.
    static Result<HeadCounts> create(const ModelConfig& config);
};

/// The rule of a tensor by its name. `head` counts come from the config of the same model.
Result<ShardRule> shard_rule(const Catalogue& catalogue, const HeadCounts& heads, TensorId tensor);

/// The runs [begin, end) of the rule's axis that rank `index` of `ranks` holds: one per part. The whole axis for kWhole.
/// Refuses (plan refused) units that cannot be spread, naming tensor, units and ranks; `grid` is "tp" or "etp".
Result<std::vector<std::pair<std::int64_t, std::int64_t>>> held_runs(const CatalogueTensor& tensor,
                                                                     const ShardRule& rule, int ranks, int index,
                                                                     const char* grid);

/// Piece `index` of `pieces` under the chunk rule: pieces of ceil(extent / pieces), the last ones short or empty.
std::pair<std::int64_t, std::int64_t> chunk_run(std::int64_t extent, std::int64_t pieces, std::int64_t index);
/// Piece `index` of an uneven split in which the first pieces take one more.
std::pair<std::int64_t, std::int64_t> even_run(std::int64_t extent, std::int64_t pieces, std::int64_t index);

}  // namespace sluice

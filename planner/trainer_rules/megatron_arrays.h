#pragma once

#include "planner/catalogue.h"
#include "planner/ownership.h"
#include "planner/trainer_rules/shard_rule.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

/// Rows [begin, end) of a checkpoint tensor that lie from row `row` of a fused array on.
struct FusedRows {
    int part = 0;  ///< Index of the tensor among the array's parts.
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t row = 0;
};

/// Which array of Megatron-Core a checkpoint tensor is a part of, or nothing where it has one of its own.
struct FusedPart {
    std::string array;  ///< Equal for all parts of one array.
    int part = 0;       ///< q, k, v = 0, 1, 2; gate, up = 0, 1.
    int parts = 0;      ///< 3 or 2.
};
std::optional<FusedPart> megatron_part(const std::string& tensor_name);

/// Rows of linear_qkv on one rank: the global rows go by KV group (its query heads, its k, its v), and are cut into equal
/// pieces, which may fall inside a group. `rows` are those of q, k and v. Refuses (plan refused) rows that cannot be cut.
Result<std::vector<FusedRows>> linear_qkv_rows(const std::string& name, const HeadCounts& heads,
                                               const std::int64_t (&rows)[3], int ranks, int index);

/// Rows of linear_fc1 on one rank: its gate rows, then its up rows.
std::vector<FusedRows> linear_fc1_rows(std::pair<std::int64_t, std::int64_t> gate,
                                       std::pair<std::int64_t, std::int64_t> up);

/// How Megatron-Core's array of one expert keeps that expert's part of a fused checkpoint tensor [experts, ...].
struct ExpertArray {
    bool transposed = false;  ///< [in, out] in the checkpoint, [out, in] in the array.
    bool pairs = false;       ///< Gate and up take turns on the cut axis; the array has all of gate first.
};
ExpertArray megatron_expert_array(const std::string& tensor_name, const ShardRule& rule, const HeadCounts& heads);

/// Where a rank keeps its experts [begin, end) of a fused tensor: one array for each, at equal distances from `offset` on.
/// `runs` are what the rank holds of the rule's axis, one part of the array after the other. Advances `offset` to the end.
std::vector<OwnedRegion> expert_arrays(const CatalogueTensor& tensor, TensorId id, const ShardRule& rule,
                                       const ExpertArray& array, std::pair<std::int64_t, std::int64_t> experts,
                                       const std::vector<std::pair<std::int64_t, std::int64_t>>& runs,
                                       std::int64_t& offset);

/// Rows per rank of a vocabulary that is padded to a multiple of 128 * ranks.
std::int64_t megatron_vocabulary_rows(std::int64_t vocabulary, int ranks);

}  // namespace sluice

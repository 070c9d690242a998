#include "planner/trainer_rules/rank_storage.h"

#include "planner/trainer_rules/shard_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

struct Rank {
    const Catalogue& catalogue;
    const TrainerLayout& layout;
    HeadCounts heads;
    TrainerLayout::Coordinates at;
    std::vector<int> stage_bounds;
    bool tied = false;

    [[nodiscard]] bool holds_group_of(const CatalogueTensor& tensor) const {
        const bool first = at.pp == 0;
        const bool last = at.pp == layout.pp - 1;
        if (tensor.group == 0) {
            // A tied model's table serves as the head on the last stage.
            return first || (last && tied && std::string_view(tensor.name).ends_with("embed_tokens.weight"));
        }
        if (tensor.group == catalogue.groups() - 1) {
            return last && tensor.tied_to.empty();
        }
        const int layer = tensor.group - 1;
        const auto stage = static_cast<std::size_t>(at.pp);
        return stage_bounds[stage] <= layer && layer < stage_bounds[stage + 1];
    }
};

// Appends one array with the boxes of `tensor` that lie side by side along the rule's axis, cut by rows over fsdp.
void store(const CatalogueTensor& tensor, TensorId id, const ShardRule& rule, const GatheredBox& whole,
           const std::vector<std::pair<std::int64_t, std::int64_t>>& runs, std::pair<std::int64_t, std::int64_t> rows,
           RankStorage& out) {
    const auto axis = static_cast<std::size_t>(rule.axis);
    Dims local;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
        local.push_back(whole.end[d] - whole.begin[d]);
    }
    if (rule.cut != ShardRule::Cut::kWhole) {
        local[axis] = 0;
        for (const auto& [begin, end] : runs) {
            local[axis] += end - begin;
        }
    }
    if (!local.empty()) {
        local[0] = rows.second - rows.first;
    }
    const std::int64_t item = size_of(tensor.dtype);
    if (num_elements(local) == 0) {
        return;
    }
    const Dims strides = contiguous_strides(local, item);
    std::int64_t offset = out.bytes;
    for (const auto& run : runs) {
        OwnedRegion region{id, whole.begin, whole.end, 0, offset, strides};
        if (rule.cut != ShardRule::Cut::kWhole) {
            region.begin[axis] = run.first;
            region.end[axis] = run.second;
        }
        if (!local.empty()) {
            region.end[0] = region.begin[0] + rows.second;
            region.begin[0] += rows.first;
        }
        if (!region.begin.empty()) {
            offset += (region.end[axis] - region.begin[axis]) * strides[axis];
        }
        out.regions.push_back(std::move(region));
    }
    out.bytes = aligned(out.bytes + num_elements(local) * item);
}

Status add_tensor(const Rank& rank, TensorId id, RankStorage& out) {
    const CatalogueTensor& tensor = rank.catalogue[id];
    SLUICE_ASSIGN_OR_RETURN(const ShardRule rule, shard_rule(rank.catalogue, rank.heads, id));
    GatheredBox whole{id, Dims(tensor.shape.size(), 0), tensor.shape, rule.is_expert()};
    if (rule.expert == ShardRule::kFusedExperts) {
        std::tie(whole.begin[0], whole.end[0]) = even_run(tensor.shape[0], rank.layout.ep, rank.at.ep);
    } else if (rule.is_expert()) {
        const auto [first, end] = even_run(rank.heads.experts, rank.layout.ep, rank.at.ep);
        if (rule.expert < first || rule.expert >= end) {
            return ok_status();
        }
    }
    const int pieces = rule.is_expert() ? rank.layout.etp : rank.layout.tp;
    const int index = rule.is_expert() ? rank.at.etp : rank.at.tp;
    SLUICE_ASSIGN_OR_RETURN(const auto runs, held_runs(tensor, rule, pieces, index, rule.is_expert() ? "etp" : "tp"));

    std::pair<std::int64_t, std::int64_t> rows{0, 1};
    if (!tensor.shape.empty()) {
        const bool cut_rows = rule.cut != ShardRule::Cut::kWhole && rule.axis == 0;
        const std::int64_t local_rows =
            cut_rows ? runs.front().second - runs.front().first : whole.end[0] - whole.begin[0];
        rows = chunk_run(local_rows, rank.layout.fsdp, rank.at.fsdp);
    }
    store(tensor, id, rule, whole, runs, rows, out);
    const bool in_part =
        (pieces > 1 && rule.cut != ShardRule::Cut::kWhole) || (rank.layout.fsdp > 1 && !tensor.shape.empty());
    if (in_part && tensor.elements() > 0) {
        out.gathered.push_back(std::move(whole));
    }
    return ok_status();
}

}  // namespace

std::int64_t aligned(std::int64_t offset) { return (offset + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment; }

Result<RankStorage> rank_storage(const Catalogue& catalogue, const ModelConfig& config, const TrainerLayout& layout,
                                 int rank) {
    SLUICE_ASSIGN_OR_RETURN(HeadCounts heads, HeadCounts::create(config));
    SLUICE_ASSIGN_OR_RETURN(std::vector<int> bounds, layout.stage_bounds(catalogue.groups() - 2));
    if (layout.ep > 1 && layout.ep > heads.experts) {
        return invalid_argument(fmt::format("trainer layout: ep={} but the model has {} experts; lower ep", layout.ep, heads.experts));
    }
    const Rank self{catalogue, layout, heads, layout.coordinates(rank), std::move(bounds),
                    config.flag_or("tie_word_embeddings", false)};
    RankStorage out;
    out.stage = self.at.pp;
    for (TensorId id = 0; id < static_cast<TensorId>(catalogue.size()); ++id) {
        if (self.holds_group_of(catalogue[id])) {
            SLUICE_RETURN_IF_ERROR(add_tensor(self, id, out));
        }
    }
    return out;
}

}  // namespace sluice

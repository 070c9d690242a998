#include "planner/trainer_rules/rank_storage.h"

#include "planner/trainer_rules/megatron_arrays.h"
#include "planner/trainer_rules/shard_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
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

// A tensor that waits for the other parts of its fused array.
struct Part {
    TensorId tensor = -1;
    ShardRule rule;
    GatheredBox whole;
};

class StorageBuilder {
public:
    explicit StorageBuilder(const Rank& rank) : rank_(rank) { out_.stage = rank.at.pp; }

    Status add(TensorId id) {
        const CatalogueTensor& tensor = rank_.catalogue[id];
        SLUICE_ASSIGN_OR_RETURN(const ShardRule rule, shard_rule(rank_.catalogue, rank_.heads, id));
        GatheredBox whole{id, Dims(tensor.shape.size(), 0), tensor.shape, rule.is_expert()};
        if (rule.expert == ShardRule::kFusedExperts) {
            std::tie(whole.begin[0], whole.end[0]) = even_run(tensor.shape[0], rank_.layout.ep, rank_.at.ep);
            if (megatron()) {
                return add_expert_arrays(id, rule, std::move(whole));
            }
        } else if (rule.is_expert()) {
            const auto [first, end] = even_run(rank_.heads.experts, rank_.layout.ep, rank_.at.ep);
            if (rule.expert < first || rule.expert >= end) {
                return ok_status();
            }
        }
        if (const auto fused = megatron() ? megatron_part(tensor.name) : std::nullopt;
            fused && rule.cut == ShardRule::Cut::kUnits && rule.block == 1) {
            auto& parts = fused_[fused->array];
            parts.resize(static_cast<std::size_t>(fused->parts));
            parts[static_cast<std::size_t>(fused->part)] = {id, rule, std::move(whole)};
            return ok_status();
        }
        return add_alone(id, rule, std::move(whole));
    }

    Result<RankStorage> finish() {
        for (auto& [array, parts] : fused_) {
            if (is_one_array(parts)) {
                SLUICE_RETURN_IF_ERROR(add_fused(array, parts));
                continue;
            }
            for (Part& part : parts) {
                if (part.tensor >= 0) {
                    SLUICE_RETURN_IF_ERROR(add_alone(part.tensor, part.rule, std::move(part.whole)));
                }
            }
        }
        std::sort(out_.regions.begin(), out_.regions.end(), [](const OwnedRegion& a, const OwnedRegion& b) {
            return a.tensor != b.tensor ? a.tensor < b.tensor : a.begin < b.begin;
        });
        std::sort(out_.gathered.begin(), out_.gathered.end(),
                  [](const GatheredBox& a, const GatheredBox& b) { return a.tensor < b.tensor; });
        return std::move(out_);
    }

private:
    // All parts are there, and rows of one dtype: an array has one, so parts of others lie in arrays of their own.
    [[nodiscard]] bool is_one_array(const std::vector<Part>& parts) const {
        return std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
            return part.tensor >= 0 && parts[0].tensor >= 0 &&
                   rank_.catalogue[part.tensor].dtype == rank_.catalogue[parts[0].tensor].dtype;
        });
    }
    [[nodiscard]] bool megatron() const { return rank_.layout.format == TrainerFormat::kMegatron; }
    [[nodiscard]] int pieces(const ShardRule& rule) const {
        return rule.is_expert() ? rank_.layout.etp : rank_.layout.tp;
    }
    [[nodiscard]] int index(const ShardRule& rule) const { return rule.is_expert() ? rank_.at.etp : rank_.at.tp; }

    [[nodiscard]] Result<std::vector<std::pair<std::int64_t, std::int64_t>>> runs_of(TensorId id,
                                                                                     const ShardRule& rule) const {
        if (megatron() && rule.cut == ShardRule::Cut::kChunk) {
            const std::int64_t rows = megatron_vocabulary_rows(rule.cut_extent, pieces(rule));
            return std::vector{std::pair{std::min(index(rule) * rows, rule.cut_extent),
                                         std::min((index(rule) + 1) * rows, rule.cut_extent)}};
        }
        return held_runs(rank_.catalogue[id], rule, pieces(rule), index(rule), rule.is_expert() ? "etp" : "tp");
    }

    Status add_alone(TensorId id, const ShardRule& rule, GatheredBox whole) {
        const CatalogueTensor& tensor = rank_.catalogue[id];
        SLUICE_ASSIGN_OR_RETURN(const auto runs, runs_of(id, rule));
        std::pair<std::int64_t, std::int64_t> rows{0, 1};
        if (!tensor.shape.empty()) {
            const bool cut_rows = rule.cut != ShardRule::Cut::kWhole && rule.axis == 0;
            const std::int64_t local_rows =
                cut_rows ? runs.front().second - runs.front().first : whole.end[0] - whole.begin[0];
            rows = chunk_run(local_rows, rank_.layout.fsdp, rank_.at.fsdp);
        }
        store(tensor, id, rule, whole, runs, rows, out_);
        const bool in_part = (pieces(rule) > 1 && rule.cut != ShardRule::Cut::kWhole) ||
                             (rank_.layout.fsdp > 1 && !tensor.shape.empty());
        if (in_part && tensor.elements() > 0) {
            out_.gathered.push_back(std::move(whole));
        }
        return ok_status();
    }

    Status add_expert_arrays(TensorId id, const ShardRule& rule, GatheredBox whole) {
        const CatalogueTensor& tensor = rank_.catalogue[id];
        const ExpertArray array = megatron_expert_array(tensor.name, rule, rank_.heads);
        if (array.pairs && rank_.layout.etp > 1) {
            return plan_refused(fmt::format(
                "tensor {}: format=megatron with etp={} is not defined for gate and up rows that take turns; use etp=1",
                tensor.name, rank_.layout.etp));
        }
        SLUICE_ASSIGN_OR_RETURN(const auto runs, runs_of(id, rule));
        for (OwnedRegion& region :
             expert_arrays(tensor, id, rule, array, {whole.begin[0], whole.end[0]}, runs, out_.bytes)) {
            out_.regions.push_back(std::move(region));
        }
        out_.bytes = aligned(out_.bytes);
        if (pieces(rule) > 1 && rule.cut != ShardRule::Cut::kWhole && tensor.elements() > 0) {
            out_.gathered.push_back(std::move(whole));
        }
        return ok_status();
    }

    Status add_fused(const std::string& array, std::vector<Part>& parts) {
        const ShardRule& rule = parts[0].rule;
        std::vector<FusedRows> fused;
        if (parts.size() == 3) {
            const auto rows = [&](std::size_t part) { return rank_.catalogue[parts[part].tensor].shape[0]; };
            SLUICE_ASSIGN_OR_RETURN(
                fused, linear_qkv_rows(array, rank_.heads, {rows(0), rows(1), rows(2)}, pieces(rule), index(rule)));
        } else {
            SLUICE_ASSIGN_OR_RETURN(const auto gate, runs_of(parts[0].tensor, parts[0].rule));
            SLUICE_ASSIGN_OR_RETURN(const auto up, runs_of(parts[1].tensor, parts[1].rule));
            fused = linear_fc1_rows(gate.front(), up.front());
        }
        std::int64_t end = out_.bytes;
        for (const FusedRows& rows : fused) {
            const Part& part = parts[static_cast<std::size_t>(rows.part)];
            const CatalogueTensor& tensor = rank_.catalogue[part.tensor];
            const Dims strides = contiguous_strides(tensor.shape, size_of(tensor.dtype));
            OwnedRegion region{part.tensor, part.whole.begin, part.whole.end, 0, out_.bytes + rows.row * strides[0],
                               strides};
            region.begin[0] = rows.begin;
            region.end[0] = rows.end;
            end = std::max(end, region.offset + (rows.end - rows.begin) * strides[0]);
            if (rows.begin < rows.end) {
                out_.regions.push_back(std::move(region));
            }
        }
        out_.bytes = aligned(end);
        for (Part& part : parts) {
            if (pieces(rule) > 1 && rank_.catalogue[part.tensor].elements() > 0) {
                out_.gathered.push_back(std::move(part.whole));
            }
        }
        return ok_status();
    }

    const Rank& rank_;
    RankStorage out_;
    std::map<std::string, std::vector<Part>> fused_;
};

}  // namespace

std::int64_t aligned(std::int64_t offset) { return (offset + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment; }

Result<RankStorage> rank_storage(const Catalogue& catalogue, const ModelConfig& config, const TrainerLayout& layout,
                                 int rank) {
    SLUICE_ASSIGN_OR_RETURN(HeadCounts heads, HeadCounts::create(config));
    SLUICE_ASSIGN_OR_RETURN(std::vector<int> bounds, layout.stage_bounds(catalogue.groups() - 2));
    if (layout.ep > 1 && layout.ep > heads.experts) {
        return invalid_argument(
            fmt::format("trainer layout: ep={} but the model has {} experts; lower ep", layout.ep, heads.experts));
    }
    const Rank self{catalogue,
                    layout,
                    heads,
                    layout.coordinates(rank),
                    std::move(bounds),
                    config.flag_or("tie_word_embeddings", false)};
    StorageBuilder builder(self);
    for (TensorId id = 0; id < static_cast<TensorId>(catalogue.size()); ++id) {
        if (self.holds_group_of(catalogue[id])) {
            SLUICE_RETURN_IF_ERROR(builder.add(id));
        }
    }
    return builder.finish();
}

}  // namespace sluice

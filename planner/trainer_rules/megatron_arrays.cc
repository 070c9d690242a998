#include "planner/trainer_rules/megatron_arrays.h"

#include "planner/trainer_rules/rank_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

namespace sluice {

std::optional<FusedPart> megatron_part(const std::string& tensor_name) {
    struct Known {
        std::string_view module;
        const char* array;
        int part;
        int parts;
    };
    static constexpr Known kKnown[] = {{".q_proj.", ".linear_qkv.", 0, 3},  {".k_proj.", ".linear_qkv.", 1, 3},
                                       {".v_proj.", ".linear_qkv.", 2, 3},  {".gate_proj.", ".linear_fc1.", 0, 2},
                                       {".up_proj.", ".linear_fc1.", 1, 2}, {".w1.", ".linear_fc1.", 0, 2},
                                       {".w3.", ".linear_fc1.", 1, 2}};
    for (const Known& known : kKnown) {
        if (const std::size_t at = tensor_name.rfind(known.module); at != std::string::npos) {
            return FusedPart{tensor_name.substr(0, at) + known.array + tensor_name.substr(at + known.module.size()),
                             known.part, known.parts};
        }
    }
    return std::nullopt;
}

Result<std::vector<FusedRows>> linear_qkv_rows(const std::string& name, const HeadCounts& heads,
                                               const std::int64_t (&rows)[3], int ranks, int index) {
    const std::int64_t groups = heads.key_value;
    const std::int64_t total = rows[0] + rows[1] + rows[2];
    if (groups <= 0 || heads.query % groups != 0 || rows[0] % groups != 0 || rows[1] % groups != 0 ||
        rows[2] % groups != 0) {
        return plan_refused(
            fmt::format("{}: {} query heads and rows {}+{}+{} do not form {} groups; correct the config", name,
                        heads.query, rows[0], rows[1], rows[2], groups));
    }
    if (total % ranks != 0) {
        return plan_refused(fmt::format(
            "{}: {} rows cannot be cut into tp={} equal pieces; choose tp that divides them", name, total, ranks));
    }
    const std::int64_t first = index * (total / ranks);
    const std::int64_t end = first + total / ranks;
    std::vector<FusedRows> out;
    std::int64_t at = 0;  // global row
    for (std::int64_t group = 0; group < groups; ++group) {
        for (int part = 0; part < 3; ++part) {
            const std::int64_t count = rows[part] / groups;
            const std::int64_t from = std::max(first, at);
            const std::int64_t to = std::min(end, at + count);
            if (from < to) {
                const std::int64_t tensor_row = group * count + from - at;
                out.push_back({part, tensor_row, tensor_row + to - from, from - first});
            }
            at += count;
        }
    }
    return out;
}

std::vector<FusedRows> linear_fc1_rows(std::pair<std::int64_t, std::int64_t> gate,
                                       std::pair<std::int64_t, std::int64_t> up) {
    return {{0, gate.first, gate.second, 0}, {1, up.first, up.second, gate.second - gate.first}};
}

ExpertArray megatron_expert_array(const std::string& tensor_name, const ShardRule& rule, const HeadCounts& heads) {
    const std::string_view leaf = std::string_view(tensor_name).substr(tensor_name.rfind('.') + 1);
    // The cut axis is the outputs of gate_up and the inputs of down.
    const bool transposed = (leaf == "gate_up_proj" && rule.axis == 2) || (leaf == "down_proj" && rule.axis == 1);
    return {transposed, heads.expert_pairs && leaf.starts_with("gate_up_proj")};
}

std::vector<OwnedRegion> expert_arrays(const CatalogueTensor& tensor, TensorId id, const ShardRule& rule,
                                       const ExpertArray& array, std::pair<std::int64_t, std::int64_t> experts,
                                       const std::vector<std::pair<std::int64_t, std::int64_t>>& runs,
                                       std::int64_t& offset) {
    const bool whole = rule.cut == ShardRule::Cut::kWhole;
    const auto axis = static_cast<std::size_t>(rule.axis);
    // The array's axes from the innermost on, as axes of the tensor.
    std::vector<std::size_t> order(tensor.shape.size() - 1);
    std::iota(order.rbegin(), order.rend(), 1);
    if (array.transposed) {
        std::reverse(order.begin(), order.end());
    }
    Dims local = tensor.shape;
    if (!whole) {
        local[axis] = 0;
        for (const auto& [begin, end] : runs) {
            local[axis] += end - begin;
        }
    }
    Dims strides(local.size(), 0);
    std::int64_t bytes = size_of(tensor.dtype);
    for (const std::size_t d : order) {
        strides[d] = bytes;
        bytes *= local[d];
    }
    strides[0] = aligned(bytes);
    std::vector<OwnedRegion> out;
    if (bytes == 0 || experts.first == experts.second) {
        return out;
    }
    std::int64_t at = offset;
    for (const auto& [begin, end] : runs) {
        OwnedRegion region{id, Dims(local.size(), 0), tensor.shape, 0, at, strides};
        region.begin[0] = experts.first;
        region.end[0] = experts.second;
        if (!whole) {
            region.begin[axis] = begin;
            region.end[axis] = end;
            at += (end - begin) * strides[axis];
        }
        if (array.pairs) {
            region.fold = {rule.axis, 2, (end - begin) / 2 * strides[axis]};
        }
        out.push_back(std::move(region));
    }
    offset += (experts.second - experts.first) * strides[0];
    return out;
}

std::int64_t megatron_vocabulary_rows(std::int64_t vocabulary, int ranks) {
    constexpr std::int64_t kMultiple = 128;
    const std::int64_t multiple = kMultiple * ranks;
    return (vocabulary + multiple - 1) / multiple * multiple / ranks;
}

}  // namespace sluice

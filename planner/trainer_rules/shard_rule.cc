#include "planner/trainer_rules/shard_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace sluice {
namespace {

constexpr std::string_view kScaleSuffix = "_scale_inv";

/// "…experts.7.down_proj.weight" -> scope "…experts.7", module "down_proj", attribute "weight".
struct NameParts {
    std::string_view module;
    std::string_view attribute;
};

NameParts split_name(std::string_view name) {
    const std::size_t last = name.rfind('.');
    if (last == std::string_view::npos) {
        return {"", name};
    }
    const std::size_t before = name.rfind('.', last - 1);
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    return {name.substr(begin, last - begin), name.substr(last + 1)};
}

ShardRule units_rule(int axis, std::int64_t units, bool repeats = false) {
    ShardRule rule;
    rule.cut = ShardRule::Cut::kUnits;
    rule.axis = axis;
    rule.units = units;
    rule.repeats = repeats;
    return rule;
}

bool is_any(std::string_view value, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), value) != names.end();
}

// Column-parallel by rows, row-parallel by columns with its bias whole; `weight_shape` is the weight's own shape.
ShardRule linear_rule(const HeadCounts& heads, const NameParts& parts, const Dims& weight_shape) {
    if (parts.attribute == "sinks") {
        return units_rule(0, heads.query);
    }
    const bool bias = parts.attribute == "bias";
    if (!bias && parts.attribute != "weight") {
        return {};  // beside a weight, in no way that is known to be cut with it
    }
    if (is_any(parts.module, {"q_proj", "q_b_proj", "kv_b_proj"})) {
        return units_rule(0, heads.query);
    }
    if (is_any(parts.module, {"k_proj", "v_proj"})) {
        return units_rule(0, heads.key_value, true);
    }
    if (parts.module == "o_proj") {
        return bias ? ShardRule() : units_rule(1, heads.query);
    }
    if (is_any(parts.module, {"gate_proj", "up_proj", "w1", "w3"})) {
        return units_rule(0, weight_shape.empty() ? 0 : weight_shape[0]);
    }
    if (is_any(parts.module, {"down_proj", "w2"})) {
        return bias ? ShardRule() : units_rule(1, weight_shape.size() < 2 ? 0 : weight_shape[1]);
    }
    return {};
}

ShardRule fused_experts_rule(const HeadCounts& heads, std::string_view leaf, const Dims& shape) {
    const bool packed = leaf.ends_with("_blocks") || leaf.ends_with("_scales");
    // Transformers 5 keeps gate_up as [E, 2M, H] and down as [E, H, M]; Llama-4 and gpt-oss the other way round. Where the shape
    // does not tell, loaders of the former refuse it, so it is one of the latter.
    const bool output_major = shape.size() == 3 && !packed && shape[1] != shape[2] &&
                              shape[leaf.starts_with("gate_up_proj") ? 2 : 1] == heads.hidden;
    ShardRule rule;
    if (leaf.starts_with("gate_up_proj")) {
        const int axis = leaf.ends_with("_bias") || packed || output_major ? 1 : 2;
        rule = units_rule(axis, static_cast<int>(shape.size()) > axis ? shape[static_cast<std::size_t>(axis)] / 2 : 0);
        rule.parts = heads.expert_pairs ? 1 : 2;
    } else if (leaf.starts_with("down_proj") && !leaf.ends_with("_bias")) {
        const int axis = packed || output_major ? 2 : 1;
        rule = units_rule(axis, static_cast<int>(shape.size()) > axis ? shape[static_cast<std::size_t>(axis)] : 0);
    }
    rule.expert = ShardRule::kFusedExperts;
    return rule;
}

}  // namespace

Result<HeadCounts> HeadCounts::create(const ModelConfig& config) {
    HeadCounts out;
    SLUICE_ASSIGN_OR_RETURN(out.query, config.integer("num_attention_heads"));
    out.key_value = config.integer_or("num_key_value_heads", out.query);
    out.hidden = config.integer_or("hidden_size", 0);
    for (const char* key : {"num_experts", "n_routed_experts", "num_local_experts"}) {
        out.experts = std::max(out.experts, config.integer_or(key, 0));
    }
    if (const nlohmann::json* block = config.find("quantization_config.weight_block_size");
        block != nullptr && block->is_array() && !block->empty() && (*block)[0].is_number_integer() &&
        (*block)[0] > 0) {
        out.scale_block = (*block)[0].get<std::int64_t>();
    }
    out.expert_pairs = config.architecture().starts_with("GptOss");
    return out;
}

Result<ShardRule> shard_rule(const Catalogue& catalogue, const HeadCounts& heads, TensorId id) {
    const CatalogueTensor& tensor = catalogue[id];
    const std::string_view name = tensor.name;
    NameParts parts = split_name(name);
    ShardRule rule;
    if (tensor.group == 0 || tensor.group == catalogue.groups() - 1) {
        if (is_any(parts.module, {"embed_tokens", "lm_head"}) && parts.attribute == "weight" && !tensor.shape.empty()) {
            rule.cut = ShardRule::Cut::kChunk;
            rule.cut_extent = tensor.shape[0];
        }
        return rule;
    }

    Dims weight_shape = tensor.shape;
    if (parts.attribute.ends_with(kScaleSuffix)) {
        // A scale is cut like the weight it belongs to, in blocks.
        const auto weight = catalogue.find(name.substr(0, name.size() - kScaleSuffix.size()));
        if (!weight) {
            return plan_refused(
                fmt::format("tensor {} has no weight beside it; remove the scale or add the weight", name));
        }
        weight_shape = catalogue[*weight].shape;
        parts.attribute.remove_suffix(kScaleSuffix.size());
        rule.block = heads.scale_block;
    }
    const std::int64_t block = rule.block;

    constexpr std::string_view kExperts = ".experts.";
    const std::size_t at = name.find(kExperts);
    if (at == std::string_view::npos) {
        rule = linear_rule(heads, parts, weight_shape);
    } else {
        const std::string_view rest = name.substr(at + kExperts.size());
        int expert = 0;
        const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), expert);
        if (error == std::errc() && stop != rest.data() + rest.size() && *stop == '.') {
            if (expert < 0 || expert >= heads.experts) {
                return plan_refused(
                    fmt::format("tensor {} belongs to expert {}, but the config has {} experts; correct the config",
                                name, expert, heads.experts));
            }
            rule = linear_rule(heads, parts, weight_shape);
            rule.expert = expert;
        } else {
            if (tensor.shape.empty()) {
                return plan_refused(
                    fmt::format("tensor {} has no expert axis; its first axis must count the experts", name));
            }
            rule = fused_experts_rule(heads, rest, tensor.shape);
        }
    }
    rule.block = block;
    if (rule.cut == ShardRule::Cut::kUnits) {
        if (static_cast<std::size_t>(rule.axis) >= weight_shape.size()) {
            return plan_refused(fmt::format("tensor {} has shape {} but is cut on axis {}; correct its shape", name,
                                            to_string(tensor.shape), rule.axis));
        }
        rule.cut_extent = weight_shape[static_cast<std::size_t>(rule.axis)];
    }
    return rule;
}

Result<std::vector<std::pair<std::int64_t, std::int64_t>>> held_runs(const CatalogueTensor& tensor,
                                                                     const ShardRule& rule, int ranks, int index,
                                                                     const char* grid) {
    using Runs = std::vector<std::pair<std::int64_t, std::int64_t>>;
    if (rule.cut == ShardRule::Cut::kWhole) {
        return Runs{{0, tensor.shape.empty() ? 1 : tensor.shape[static_cast<std::size_t>(rule.axis)]}};
    }
    if (rule.cut == ShardRule::Cut::kChunk) {
        return Runs{chunk_run(rule.cut_extent, ranks, index)};
    }
    const std::int64_t part = rule.cut_extent / rule.parts;
    if (rule.units <= 0 || part % rule.units != 0 || part * rule.parts != rule.cut_extent) {
        return plan_refused(
            fmt::format("tensor {}: {} on axis {} does not hold a whole number of {} units; correct the config",
                        tensor.name, rule.cut_extent, rule.axis, rule.units));
    }
    const std::int64_t unit = part / rule.units;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    if (rule.units % ranks == 0) {
        begin = index * (rule.units / ranks) * unit;
        end = (index + 1) * (rule.units / ranks) * unit;
    } else if (rule.repeats && ranks % rule.units == 0) {
        begin = index / (ranks / rule.units) * unit;
        end = begin + unit;
    } else {
        return plan_refused(
            fmt::format("tensor {}: {} units on axis {} cannot be spread over {}={}; choose {} that divides {}",
                        tensor.name, rule.units, rule.axis, grid, ranks, grid, rule.units));
    }
    Runs runs;
    for (int p = 0; p < rule.parts; ++p) {
        // A scale block that a border cuts is held on both sides.
        runs.emplace_back((p * part + begin) / rule.block, (p * part + end + rule.block - 1) / rule.block);
    }
    return runs;
}

std::pair<std::int64_t, std::int64_t> chunk_run(std::int64_t extent, std::int64_t pieces, std::int64_t index) {
    const std::int64_t piece = (extent + pieces - 1) / pieces;
    return {std::min(index * piece, extent), std::min((index + 1) * piece, extent)};
}

std::pair<std::int64_t, std::int64_t> even_run(std::int64_t extent, std::int64_t pieces, std::int64_t index) {
    const std::int64_t base = extent / pieces;
    const std::int64_t rest = extent % pieces;
    const std::int64_t begin = index * base + std::min(index, rest);
    return {begin, begin + base + (index < rest ? 1 : 0)};
}

}  // namespace sluice

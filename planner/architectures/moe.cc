#include "planner/architectures/shapes.h"

#include <algorithm>

namespace sluice::architectures {

void qwen3_moe(TensorList& list, ConfigReader& reader) {
    const DecoderSizes sizes(reader);
    const std::int64_t dim = head_dim(reader, sizes);
    const bool bias = reader.flag_or("attention_bias", false);
    const std::int64_t experts = reader.size("num_experts");
    const std::int64_t expert_width = reader.size("moe_intermediate_size");
    const std::int64_t sparse_step = reader.size_or("decoder_sparse_step", 1);
    const std::vector<std::int64_t> mlp_only = reader.list_or_empty("mlp_only_layers");
    const bool all_sparse = sparse_step == 1 && mlp_only.empty();
    const std::int64_t dense_width =
        all_sparse ? reader.size_or("intermediate_size", 1) : reader.size("intermediate_size");
    check_experts(reader, sizes, experts);
    if (!reader.status().ok()) {
        return;
    }
    add_ends(list, reader, sizes);
    for (std::int64_t n = 0; n < sizes.layers; ++n) {
        const std::string layer = layer_path(n);
        add_layer_norms(list, sizes, layer);
        add_attention(list, sizes, dim, {.qkv_bias = bias, .o_bias = bias, .qk_norm = true}, layer);
        if ((n + 1) % sparse_step != 0 || std::find(mlp_only.begin(), mlp_only.end(), n) != mlp_only.end()) {
            add_gated_mlp(list, sizes.hidden, dense_width, layer + "mlp.");
            continue;
        }
        list.add(layer + "mlp.gate.weight", {experts, sizes.hidden});
        for (std::int64_t x = 0; x < experts; ++x) {
            add_gated_mlp(list, sizes.hidden, expert_width, layer + "mlp.experts." + std::to_string(x) + ".");
        }
    }
}

void mixtral(TensorList& list, ConfigReader& reader) {
    const DecoderSizes sizes(reader);
    const std::int64_t dim = head_dim(reader, sizes);
    const std::int64_t experts = reader.size("num_local_experts");
    const std::int64_t width = reader.size("intermediate_size");
    check_experts(reader, sizes, experts);
    if (!reader.status().ok()) {
        return;
    }
    add_ends(list, reader, sizes);
    for (std::int64_t n = 0; n < sizes.layers; ++n) {
        const std::string layer = layer_path(n);
        add_layer_norms(list, sizes, layer);
        add_attention(list, sizes, dim, {}, layer);
        const std::string block = layer + "block_sparse_moe.";
        list.add(block + "gate.weight", {experts, sizes.hidden});
        for (std::int64_t x = 0; x < experts; ++x) {
            const std::string expert = block + "experts." + std::to_string(x) + ".";
            list.add(expert + "w1.weight", {width, sizes.hidden});
            list.add(expert + "w2.weight", {sizes.hidden, width});
            list.add(expert + "w3.weight", {width, sizes.hidden});
        }
    }
}

}  // namespace sluice::architectures

#include "planner/loaders/architectures.h"
#include "planner/loaders/experts.h"

namespace sluice::loaders {

void qwen3_moe(LoadContext& load) {
    const std::int64_t hidden = load.integer("hidden_size");
    const std::int64_t experts = load.integer("num_experts");
    const std::int64_t sparse_step = load.integer_or("decoder_sparse_step", 1);
    const bool bias = load.flag_or("attention_bias", false);
    ends(load);
    for (std::int64_t n = 0; n < load.integer("num_hidden_layers"); ++n) {
        const std::string layer = layer_path(n);
        layer_norms(load, layer);
        attention(load, layer, {.qkv_bias = bias, .o_bias = bias, .qk_norm = true});
        if ((n + 1) % sparse_step != 0 || lists_layer(load, "mlp_only_layers", n)) {
            rules::gated_mlp(load, layer + "mlp.", load.integer("intermediate_size"), hidden);
            continue;
        }
        rules::replicated(load, layer + "mlp.gate.weight", {experts, hidden});
        rules::routed_experts(load, {.path = layer + "mlp.experts.",
                                     .count = experts,
                                     .width = load.integer("moe_intermediate_size"),
                                     .hidden = hidden});
    }
}

void mixtral(LoadContext& load) {
    const std::int64_t hidden = load.integer("hidden_size");
    const std::int64_t experts = load.integer("num_local_experts");
    ends(load);
    for (std::int64_t n = 0; n < load.integer("num_hidden_layers"); ++n) {
        const std::string layer = layer_path(n);
        layer_norms(load, layer);
        attention(load, layer, {});
        const std::string block = layer + "block_sparse_moe.";
        rules::replicated(load, block + "gate.weight", {experts, hidden});
        rules::routed_experts(load, {.path = block + "experts.",
                                     .count = experts,
                                     .width = load.integer("intermediate_size"),
                                     .hidden = hidden,
                                     .gate = "w1",
                                     .up = "w3",
                                     .down = "w2"});
    }
}

}  // namespace sluice::loaders

#include "planner/loaders/architectures.h"

namespace sluice::loaders {
namespace {

void dense_decoder(LoadContext& load, const AttentionOptions& options, bool mlp_bias = false) {
    ends(load);
    for (std::int64_t n = 0; n < load.integer("num_hidden_layers"); ++n) {
        const std::string layer = layer_path(n);
        layer_norms(load, layer);
        attention(load, layer, options);
        rules::gated_mlp(load, layer + "mlp.", load.integer("intermediate_size"), load.integer("hidden_size"),
                         mlp_bias);
    }
}

}  // namespace

void llama(LoadContext& load) {
    const bool bias = load.flag_or("attention_bias", false);
    dense_decoder(load, {.qkv_bias = bias, .o_bias = bias, .qk_norm = false}, load.flag_or("mlp_bias", false));
}

void qwen2(LoadContext& load) { dense_decoder(load, {.qkv_bias = true, .o_bias = false, .qk_norm = false}); }

void qwen3(LoadContext& load) {
    const bool bias = load.flag_or("attention_bias", false);
    dense_decoder(load, {.qkv_bias = bias, .o_bias = bias, .qk_norm = true});
}

}  // namespace sluice::loaders

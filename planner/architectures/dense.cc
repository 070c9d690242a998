#include "planner/architectures/shapes.h"

namespace sluice::architectures {

namespace {

void dense_decoder(TensorList& list, ConfigReader& reader, const AttentionOptions& options, bool mlp_bias) {
    const DecoderSizes sizes(reader);
    const std::int64_t dim = head_dim(reader, sizes);
    const std::int64_t intermediate = reader.size("intermediate_size");
    if (!reader.status().ok()) {
        return;
    }
    add_ends(list, reader, sizes);
    for (std::int64_t n = 0; n < sizes.layers; ++n) {
        const std::string layer = layer_path(n);
        add_layer_norms(list, sizes, layer);
        add_attention(list, sizes, dim, options, layer);
        add_gated_mlp(list, sizes.hidden, intermediate, layer + "mlp.", mlp_bias);
    }
}

}  // namespace

void llama(TensorList& list, ConfigReader& reader) {
    const bool bias = reader.flag_or("attention_bias", false);
    dense_decoder(list, reader, {.qkv_bias = bias, .o_bias = bias, .qk_norm = false},
                  reader.flag_or("mlp_bias", false));
}

void qwen2(TensorList& list, ConfigReader& reader) {
    dense_decoder(list, reader, {.qkv_bias = true, .o_bias = false, .qk_norm = false}, false);
}

void qwen3(TensorList& list, ConfigReader& reader) {
    const bool bias = reader.flag_or("attention_bias", false);
    dense_decoder(list, reader, {.qkv_bias = bias, .o_bias = bias, .qk_norm = true}, false);
}

}  // namespace sluice::architectures

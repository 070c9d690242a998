#include "planner/architectures/shapes.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::architectures {

namespace {

void add_text(TensorList& list, ConfigReader& reader) {
    const std::string prefix = "language_model.";
    const DecoderSizes sizes(reader);
    const std::int64_t dim = head_dim(reader, sizes);
    const bool bias = reader.flag_or("attention_bias", false);
    const std::int64_t experts = reader.size("num_local_experts");
    const std::int64_t width = reader.size("intermediate_size");
    const std::int64_t step = reader.size_or("interleave_moe_layer_step", 1);
    const std::vector<std::int64_t> moe_layers = reader.list_or_empty("moe_layers");
    check_experts(reader, sizes, experts);
    if (!reader.status().ok()) {
        return;
    }
    add_ends(list, reader, sizes, prefix);
    for (std::int64_t n = 0; n < sizes.layers; ++n) {
        const std::string layer = layer_path(n, prefix);
        add_layer_norms(list, sizes, layer);
        add_attention(list, sizes, dim, {.qkv_bias = bias, .o_bias = bias, .qk_norm = false}, layer);
        const std::string block = layer + "feed_forward.";
        const bool sparse = moe_layers.empty() ? (n + 1) % step == 0
                                               : std::find(moe_layers.begin(), moe_layers.end(), n) != moe_layers.end();
        if (!sparse) {
            add_gated_mlp(list, sizes.hidden, reader.size("intermediate_size_mlp"), block);
            continue;
        }
        list.add(block + "router.weight", {experts, sizes.hidden});
        list.add(block + "experts.gate_up_proj", {experts, sizes.hidden, 2 * width});
        list.add(block + "experts.down_proj", {experts, width, sizes.hidden});
        add_gated_mlp(list, sizes.hidden, width, block + "shared_expert.");
    }
}

void add_vision(TensorList& list, ConfigReader& reader) {
    const std::int64_t hidden = reader.size("vision_config.hidden_size");
    const std::int64_t width = reader.size("vision_config.intermediate_size");
    const std::int64_t layers = reader.size("vision_config.num_hidden_layers");
    const std::int64_t patch = reader.size("vision_config.patch_size");
    const std::int64_t patches = reader.size("vision_config.image_size") / patch;
    const std::int64_t channels = reader.size_or("vision_config.num_channels", 3);
    const std::int64_t adapter_in = reader.size("vision_config.projector_input_dim");
    const std::int64_t adapter_out = reader.size("vision_config.projector_output_dim");
    const std::int64_t vision_out = reader.size("vision_config.vision_output_dim");
    reader.divide(hidden, reader.size("vision_config.num_attention_heads"), "vision_config.hidden_size",
                  "vision_config.num_attention_heads");
    constexpr std::int64_t kMostPixels = 1 << 20;
    if (patch > kMostPixels || patches > kMostPixels || channels > kMostPixels || layers > kMostPixels || patches < 1) {
        reader.fail(
            "config: vision_config's image_size, patch_size, num_channels and num_hidden_layers make no vision tower");
    }
    if (!reader.status().ok()) {
        return;
    }
    const auto with_bias = [&](const std::string& name, Dims shape) {
        const std::int64_t out = shape.front();
        list.add(name + ".weight", std::move(shape));
        list.add(name + ".bias", {out});
    };
    list.add("vision_model.class_embedding", {hidden});
    list.add("vision_model.positional_embedding_vlm", {patches * patches + 1, hidden});
    list.add("vision_model.patch_embedding.linear.weight", {hidden, channels * patch * patch});
    with_bias("vision_model.layernorm_pre", {hidden});
    with_bias("vision_model.layernorm_post", {hidden});
    for (std::int64_t n = 0; n < layers; ++n) {
        const std::string layer = fmt::format("vision_model.model.layers.{}.", n);
        for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}) {
            with_bias(layer + name, {hidden, hidden});
        }
        with_bias(layer + "mlp.fc1", {width, hidden});
        with_bias(layer + "mlp.fc2", {hidden, width});
        with_bias(layer + "input_layernorm", {hidden});
        with_bias(layer + "post_attention_layernorm", {hidden});
    }
    // The adapter's input, hidden / pixel_shuffle_ratio^2, is what the model class takes intermediate_size for.
    list.add("vision_model.vision_adapter.mlp.fc1.weight", {adapter_in, width});
    list.add("vision_model.vision_adapter.mlp.fc2.weight", {adapter_out, adapter_out});
    list.add("multi_modal_projector.linear_1.weight", {reader.size("hidden_size"), vision_out});
}

}  // namespace

void llama4(TensorList& list, ConfigReader& reader) {
    add_text(list, reader);
    add_vision(list, reader);
}

}  // namespace sluice::architectures

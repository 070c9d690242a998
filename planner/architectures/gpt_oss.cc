#include "planner/architectures/shapes.h"

namespace sluice::architectures {

void gpt_oss(TensorList& list, ConfigReader& reader, WeightForm form) {
    constexpr std::int64_t kBlock = 32;       // values of an mxfp4 block, which share a scale
    constexpr std::int64_t kBlockBytes = 16;  // two values a byte
    const DecoderSizes sizes(reader);
    const std::int64_t dim = head_dim(reader, sizes);
    const bool bias = reader.flag_or("attention_bias", true);
    const std::int64_t experts = reader.size("num_local_experts");
    const std::int64_t width = reader.size("intermediate_size");
    check_experts(reader, sizes, experts);
    const bool mxfp4 = form == WeightForm::kPublished && reader.has("quantization_config");
    const std::int64_t hidden_blocks =
        mxfp4 ? reader.divide(sizes.hidden, kBlock, "hidden_size", "the mxfp4 block") : 0;
    const std::int64_t width_blocks = mxfp4 ? reader.divide(width, kBlock, "intermediate_size", "the mxfp4 block") : 0;
    if (!reader.status().ok()) {
        return;
    }
    add_ends(list, reader, sizes);
    for (std::int64_t n = 0; n < sizes.layers; ++n) {
        const std::string layer = layer_path(n);
        add_layer_norms(list, sizes, layer);
        add_attention(list, sizes, dim, {.qkv_bias = bias, .o_bias = bias, .qk_norm = false}, layer);
        list.add(layer + "self_attn.sinks", {sizes.heads});
        list.add(layer + "mlp.router.weight", {experts, sizes.hidden});
        list.add(layer + "mlp.router.bias", {experts});
        const std::string block = layer + "mlp.experts.";
        list.add(block + "gate_up_proj_bias", {experts, 2 * width});
        list.add(block + "down_proj_bias", {experts, sizes.hidden});
        if (mxfp4) {
            list.add(block + "gate_up_proj_blocks", {experts, 2 * width, hidden_blocks, kBlockBytes}, DType::kU8);
            list.add(block + "gate_up_proj_scales", {experts, 2 * width, hidden_blocks}, DType::kU8);
            list.add(block + "down_proj_blocks", {experts, sizes.hidden, width_blocks, kBlockBytes}, DType::kU8);
            list.add(block + "down_proj_scales", {experts, sizes.hidden, width_blocks}, DType::kU8);
        } else {
            list.add(block + "gate_up_proj", {experts, sizes.hidden, 2 * width});
            list.add(block + "down_proj", {experts, width, sizes.hidden});
        }
    }
}

}  // namespace sluice::architectures

#include "planner/loaders/architectures.h"
#include "planner/loaders/experts.h"

namespace sluice::loaders {
namespace {

// The checkpoint keeps the rotary pairs of a head next to each other, the engine in two halves: row 64p + i of a head
// is the checkpoint's row 2i + p.
RecordingTensor rotary_halves(const RecordingTensor& projection, std::int64_t heads) {
    const std::int64_t in = projection.size(1);
    return projection.view({heads, projection.size(0) / heads / 2, 2, in}).transpose(1, 2).reshape({-1, in});
}

void permuted_qkv(LoadContext& load, const std::string& path) {
    const rules::Heads heads = attention_heads(load);
    const std::int64_t hidden = load.integer("hidden_size");
    const rules::HeadSplits splits = rules::head_splits(load, path + "qkv_proj", heads);
    const auto projection = [&](const char* name, std::int64_t count) {
        return load.tensor(path + name, {count * heads.dim, hidden});
    };
    const rules::RowPart parts[] = {
        {rotary_halves(projection("q_proj.weight", heads.query), heads.query), splits.query},
        {rotary_halves(projection("k_proj.weight", heads.kv), heads.kv), splits.kv},
        {projection("v_proj.weight", heads.kv), splits.kv}};
    rules::rows(load, path + "qkv_proj.weight", parts, load.dtype());
}

// All experts in two tensors, input-major: gate_up [E, H, 2M] with gate in the first half, down [E, M, H].
void input_major_experts(LoadContext& load, const std::string& path, std::int64_t count, std::int64_t width,
                         std::int64_t hidden) {
    const rules::ExpertShare share = rules::expert_share(load, path, count);
    const auto slots = static_cast<std::int64_t>(share.experts.size());
    const std::int64_t local =
        share.width.piece(width, "parameter " + path + "w13_weight: an expert width of " + std::to_string(width));
    const std::int64_t begin = share.width.rank * local;
    const RecordingParameter w13 = load.parameter(path + "w13_weight", {slots, 2 * local, hidden});
    const RecordingParameter w2 = load.parameter(path + "w2_weight", {slots, hidden, local});
    const std::vector<RecordingTensor> halves =
        load.tensor(path + "gate_up_proj", {count, hidden, 2 * width}).transpose(-1, -2).chunk(2, -2);
    rules::fused_experts(w13.narrow(1, 0, local), halves[0].narrow(1, begin, local), share);
    rules::fused_experts(w13.narrow(1, local, local), halves[1].narrow(1, begin, local), share);
    rules::fused_experts(
        w2, load.tensor(path + "down_proj", {count, width, hidden}).transpose(-1, -2).narrow(2, begin, local), share);
}

}  // namespace

void llama4(LoadContext& load) {
    const std::string prefix = "language_model.";
    const std::int64_t hidden = load.integer("hidden_size");
    const std::int64_t width = load.integer("intermediate_size");
    const std::int64_t experts = load.integer("num_local_experts");
    const std::int64_t step = load.integer_or("interleave_moe_layer_step", 1);
    const nlohmann::json* listed = load.config().find("moe_layers");
    const bool by_list = listed != nullptr && listed->is_array() && !listed->empty();
    if (load.flag_or("attention_bias", false)) {
        refuse("config attention_bias: this loader permutes weights only, and has no rule for biases");
    }
    ends(load, prefix);
    for (std::int64_t n = 0; n < load.integer("num_hidden_layers"); ++n) {
        const std::string layer = layer_path(n, prefix);
        layer_norms(load, layer);
        permuted_qkv(load, layer + "self_attn.");
        const rules::Heads heads = attention_heads(load);
        rules::row(load, layer + "self_attn.o_proj", hidden, heads.query * heads.dim);
        const std::string block = layer + "feed_forward.";
        if (by_list ? !lists_layer(load, "moe_layers", n) : (n + 1) % step != 0) {
            rules::gated_mlp(load, block, load.integer("intermediate_size_mlp"), hidden);
            continue;
        }
        rules::replicated(load, block + "router.weight", {experts, hidden});
        input_major_experts(load, block + "experts.", experts, width, hidden);
        rules::gated_mlp(load, block + "shared_expert.", width, hidden);
    }
    // The vision side is small; every rank holds all of it under the checkpoint's names.
    for (const CatalogueTensor& tensor : load.catalogue().tensors()) {
        if (tensor.name.starts_with("vision_model.") || tensor.name.starts_with("multi_modal_projector.")) {
            rules::replicated(load, tensor.name, tensor.shape);
        }
    }
}

}  // namespace sluice::loaders

#include "planner/loaders/architectures.h"
#include "planner/loaders/experts.h"

namespace sluice::loaders {
namespace {

// The feed-forward side that DeepSeek-V3 and GLM-4 share: dense layers first, then routed and shared experts.
void feed_forward(LoadContext& load, std::int64_t n, const std::string& layer, DType router_dtype) {
    const std::int64_t hidden = load.integer("hidden_size");
    const std::string mlp = layer + "mlp.";
    if (n < load.integer_or("first_k_dense_replace", 0) || n % load.integer_or("moe_layer_freq", 1) != 0) {
        rules::gated_mlp(load, mlp, load.integer("intermediate_size"), hidden);
        return;
    }
    const std::int64_t experts = load.integer("n_routed_experts");
    const std::int64_t width = load.integer("moe_intermediate_size");
    const std::int64_t shared = load.integer_or("n_shared_experts", 0);
    rules::replicated(load, mlp + "gate.weight", {experts, hidden}, router_dtype);
    rules::replicated(load, mlp + "gate.e_score_correction_bias", {experts}, DType::kF32);
    rules::routed_experts(load, {.path = mlp + "experts.",
                                 .count = experts,
                                 .width = width,
                                 .hidden = hidden,
                                 .groups = load.integer_or("n_group", 1)});
    if (shared > 0) {
        rules::gated_mlp(load, mlp + "shared_experts.", shared * width, hidden);
    }
}

// Multi-head latent attention: the first projections are whole on every rank, the second ones cut by heads.
void latent_attention(LoadContext& load, const std::string& path) {
    const std::int64_t hidden = load.integer("hidden_size");
    const std::int64_t heads = load.integer("num_attention_heads");
    const std::int64_t kv_rank = load.integer("kv_lora_rank");
    const std::int64_t nope = load.integer("qk_nope_head_dim");
    const std::int64_t rope = load.integer("qk_rope_head_dim");
    const std::int64_t value = load.integer("v_head_dim");
    rules::head_splits(load, path + "q_b_proj", {heads, heads, nope + rope});
    const rules::LinearPart kv_a{path + "kv_a_proj_with_mqa", kv_rank + rope, {}};
    if (load.config().has("q_lora_rank") && load.integer_or("q_lora_rank", 0) > 0) {
        const std::int64_t q_rank = load.integer("q_lora_rank");
        const rules::LinearPart parts[] = {{path + "q_a_proj", q_rank, {}}, kv_a};
        rules::column_parts(load, path + "fused_qkv_a_proj", parts, hidden);
        rules::replicated(load, path + "q_a_layernorm.weight", {q_rank});
        rules::column(load, path + "q_b_proj", heads * (nope + rope), q_rank);
    } else {
        rules::column(load, path + "q_proj", heads * (nope + rope), hidden);
        rules::column_parts(load, path + "kv_a_proj_with_mqa", {&kv_a, 1}, hidden);
    }
    rules::replicated(load, path + "kv_a_layernorm.weight", {kv_rank});
    rules::column(load, path + "kv_b_proj", heads * (nope + value), kv_rank);
    rules::row(load, path + "o_proj", hidden, heads * value);
}

}  // namespace

void deepseek_v3(LoadContext& load) {
    ends(load);
    for (std::int64_t n = 0; n < load.integer("num_hidden_layers"); ++n) {
        const std::string layer = layer_path(n);
        layer_norms(load, layer);
        latent_attention(load, layer + "self_attn.");
        feed_forward(load, n, layer, load.dtype());
    }
}

void glm4_moe(LoadContext& load) {
    const AttentionOptions options{.qkv_bias = load.flag_or("attention_bias", false),
                                   .o_bias = false,
                                   .qk_norm = load.flag_or("use_qk_norm", false)};
    ends(load);
    for (std::int64_t n = 0; n < load.integer("num_hidden_layers"); ++n) {
        const std::string layer = layer_path(n);
        layer_norms(load, layer);
        attention(load, layer, options);
        feed_forward(load, n, layer, DType::kF32);
    }
}

}  // namespace sluice::loaders

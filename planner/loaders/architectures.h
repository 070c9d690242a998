#pragma once

#include "planner/loaders/load_context.h"
#include "planner/loaders/rules.h"

#include <cstdint>
#include <string>

/// The loaders of the built-in architectures, one function each, and what they share.
namespace sluice::loaders {

void llama(LoadContext& load);
void qwen2(LoadContext& load);
void qwen3(LoadContext& load);
void qwen3_moe(LoadContext& load);
void mixtral(LoadContext& load);
void deepseek_v3(LoadContext& load);
void glm4_moe(LoadContext& load);
void llama4(LoadContext& load);
void gpt_oss(LoadContext& load);

/// num_attention_heads, num_key_value_heads and head_dim (else hidden_size / heads) of the config.
rules::Heads attention_heads(const LoadContext& load);
/// prefix + "model.layers.N."
std::string layer_path(std::int64_t layer, const std::string& prefix = "");
/// Embedding, final norm, and the head unless it is tied to the embedding; names below `prefix`.
void ends(LoadContext& load, const std::string& prefix = "");
/// input_layernorm and post_attention_layernorm.
void layer_norms(LoadContext& load, const std::string& layer);

struct AttentionOptions {
    bool qkv_bias = false;
    bool o_bias = false;
    bool qk_norm = false;
};
/// self_attn of a layer: qkv_proj, o_proj and the norms of q and k.
void attention(LoadContext& load, const std::string& layer, const AttentionOptions& options);

/// Whether `layer` is in the config's list `key`.
bool lists_layer(const LoadContext& load, std::string_view key, std::int64_t layer);

}  // namespace sluice::loaders

#include "planner/loaders/architectures.h"

namespace sluice::loaders {

rules::Heads attention_heads(const LoadContext& load) {
    const std::int64_t query = load.integer("num_attention_heads");
    return {query, load.integer_or("num_key_value_heads", query),
            load.integer_or("head_dim", load.integer("hidden_size") / query)};
}

std::string layer_path(std::int64_t layer, const std::string& prefix) {
    return prefix + "model.layers." + std::to_string(layer) + ".";
}

void ends(LoadContext& load, const std::string& prefix) {
    const std::int64_t vocab = load.integer("vocab_size");
    const std::int64_t hidden = load.integer("hidden_size");
    rules::vocabulary(load, prefix + "model.embed_tokens.weight", vocab, hidden);
    rules::replicated(load, prefix + "model.norm.weight", {hidden});
    if (!load.flag_or("tie_word_embeddings", false)) {
        rules::vocabulary(load, prefix + "lm_head.weight", vocab, hidden);
    }
}

void layer_norms(LoadContext& load, const std::string& layer) {
    const Dims shape{load.integer("hidden_size")};
    rules::replicated(load, layer + "input_layernorm.weight", shape);
    rules::replicated(load, layer + "post_attention_layernorm.weight", shape);
}

void attention(LoadContext& load, const std::string& layer, const AttentionOptions& options) {
    const rules::Heads heads = attention_heads(load);
    const std::int64_t hidden = load.integer("hidden_size");
    const std::string path = layer + "self_attn.";
    rules::qkv(load, path, heads, hidden, options.qkv_bias);
    rules::row(load, path + "o_proj", hidden, heads.query * heads.dim, options.o_bias);
    if (options.qk_norm) {
        rules::replicated(load, path + "q_norm.weight", {heads.dim});
        rules::replicated(load, path + "k_norm.weight", {heads.dim});
    }
}

bool lists_layer(const LoadContext& load, std::string_view key, std::int64_t layer) {
    const nlohmann::json* list = load.config().find(key);
    if (list == nullptr || !list->is_array()) {
        return false;
    }
    for (const nlohmann::json& entry : *list) {
        if (entry == layer) {
            return true;
        }
    }
    return false;
}

}  // namespace sluice::loaders

#include "planner/architectures/shapes.h"

#include <fmt/format.h>

namespace sluice::architectures {

namespace {

/// A linear weight. Published, it is fp8 with one f32 scale per block.
class Linears {
public:
    Linears(TensorList& list, ConfigReader& reader, WeightForm form) : list_(list) {
        if (form == WeightForm::kPublished && reader.has("quantization_config.weight_block_size")) {
            const std::vector<std::int64_t> block = reader.list_or_empty("quantization_config.weight_block_size");
            if (block.size() != 2 || block[0] < 1 || block[1] < 1) {
                reader.fail("config: quantization_config.weight_block_size must be two positive integers");
                return;
            }
            block_ = {block[0], block[1]};
        }
    }
    void add(const std::string& name, std::int64_t out, std::int64_t in) {
        if (block_.empty()) {
            list_.add(name + ".weight", {out, in});
            return;
        }
        list_.add(name + ".weight", {out, in}, DType::kF8E4M3);
        list_.add(name + ".weight_scale_inv", {cdiv(out, block_[0]), cdiv(in, block_[1])}, DType::kF32);
    }
    void add_mlp(const std::string& path, std::int64_t hidden, std::int64_t width) {
        add(path + "gate_proj", width, hidden);
        add(path + "up_proj", width, hidden);
        add(path + "down_proj", hidden, width);
    }

private:
    static std::int64_t cdiv(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

    TensorList& list_;
    Dims block_;
};

/// Layers beyond the stack (multi-token prediction): a layer of the usual form and these around it.
void add_draft_extras(TensorList& list, const DecoderSizes& sizes, const std::string& layer) {
    list.add(layer + "embed_tokens.weight", {sizes.vocab, sizes.hidden});
    list.add(layer + "enorm.weight", {sizes.hidden});
    list.add(layer + "hnorm.weight", {sizes.hidden});
    list.add(layer + "eh_proj.weight", {sizes.hidden, 2 * sizes.hidden});
    list.add(layer + "shared_head.norm.weight", {sizes.hidden});
    list.add(layer + "shared_head.head.weight", {sizes.vocab, sizes.hidden});
}

/// The feed-forward side that DeepSeek-V3 and GLM-4 share: dense layers first, then routed and shared experts.
struct ExpertSizes {
    explicit ExpertSizes(ConfigReader& reader)
        : experts(reader.size("n_routed_experts")),
          shared(reader.count_or("n_shared_experts", 0)),
          width(reader.size("moe_intermediate_size")),
          dense_width(reader.size("intermediate_size")),
          first_dense(reader.count_or("first_k_dense_replace", 0)),
          frequency(reader.size_or("moe_layer_freq", 1)),
          draft_layers(reader.count_or("num_nextn_predict_layers", 0)) {}

    [[nodiscard]] bool is_sparse(std::int64_t layer) const { return layer >= first_dense && layer % frequency == 0; }

    std::int64_t experts, shared, width, dense_width, first_dense, frequency, draft_layers;
};

void add_feed_forward(TensorList& list, Linears& linears, const DecoderSizes& sizes, const ExpertSizes& moe,
                      bool sparse, const std::string& layer) {
    const std::string mlp = layer + "mlp.";
    if (!sparse) {
        linears.add_mlp(mlp, sizes.hidden, moe.dense_width);
        return;
    }
    list.add(mlp + "gate.weight", {moe.experts, sizes.hidden});
    list.add(mlp + "gate.e_score_correction_bias", {moe.experts}, DType::kF32);
    for (std::int64_t x = 0; x < moe.experts; ++x) {
        linears.add_mlp(mlp + "experts." + std::to_string(x) + ".", sizes.hidden, moe.width);
    }
    if (moe.shared > 0) {
        linears.add_mlp(mlp + "shared_experts.", sizes.hidden, moe.width * moe.shared);
    }
}

/// Runs `attention(layer path)` and the rest of each layer, and in published form of the draft layers behind them.
template <class Attention>
void add_layers(TensorList& list, Linears& linears, const DecoderSizes& sizes, const ExpertSizes& moe, WeightForm form,
                const Attention& attention) {
    const std::int64_t drafts = form == WeightForm::kPublished ? moe.draft_layers : 0;
    for (std::int64_t n = 0; n < sizes.layers + drafts; ++n) {
        const std::string layer = layer_path(n);
        const bool draft = n >= sizes.layers;
        if (draft) {
            add_draft_extras(list, sizes, layer);
        }
        add_layer_norms(list, sizes, layer);
        attention(layer);
        add_feed_forward(list, linears, sizes, moe, draft || moe.is_sparse(n), layer);
    }
}

}  // namespace

void deepseek_v3(TensorList& list, ConfigReader& reader, WeightForm form) {
    const DecoderSizes sizes(reader);
    const ExpertSizes moe(reader);
    const bool has_q_rank = reader.has("q_lora_rank");
    const std::int64_t q_rank = has_q_rank ? reader.size("q_lora_rank") : 0;
    const std::int64_t kv_rank = reader.size("kv_lora_rank");
    const std::int64_t nope = reader.size("qk_nope_head_dim");
    const std::int64_t rope = reader.size("qk_rope_head_dim");
    const std::int64_t v_dim = reader.size("v_head_dim");
    // Kimi-K2's files carry one rotary buffer per layer, of a length that its config does not tell.
    constexpr std::int64_t kKimiRotary = 56;
    const nlohmann::json* model_type = reader.config().find("model_type");
    const bool rotary = form == WeightForm::kPublished && model_type != nullptr && *model_type == "kimi_k2";
    check_experts(reader, sizes, moe.experts);
    Linears linears(list, reader, form);
    if (!reader.status().ok()) {
        return;
    }
    add_ends(list, reader, sizes);
    add_layers(list, linears, sizes, moe, form, [&](const std::string& layer) {
        const std::string path = layer + "self_attn.";
        const std::int64_t q_width = sizes.heads * (nope + rope);
        if (has_q_rank) {
            linears.add(path + "q_a_proj", q_rank, sizes.hidden);
            list.add(path + "q_a_layernorm.weight", {q_rank});
            linears.add(path + "q_b_proj", q_width, q_rank);
        } else {
            linears.add(path + "q_proj", q_width, sizes.hidden);
        }
        linears.add(path + "kv_a_proj_with_mqa", kv_rank + rope, sizes.hidden);
        list.add(path + "kv_a_layernorm.weight", {kv_rank});
        linears.add(path + "kv_b_proj", sizes.heads * (nope + v_dim), kv_rank);
        linears.add(path + "o_proj", sizes.hidden, sizes.heads * v_dim);
        if (rotary) {
            list.add(path + "rotary_emb.inv_freq", {kKimiRotary});
        }
    });
}

void glm4_moe(TensorList& list, ConfigReader& reader, WeightForm form) {
    const DecoderSizes sizes(reader);
    const ExpertSizes moe(reader);
    const std::int64_t dim = head_dim(reader, sizes);
    const AttentionOptions attention{.qkv_bias = reader.flag_or("attention_bias", false),
                                     .o_bias = false,
                                     .qk_norm = reader.flag_or("use_qk_norm", false)};
    check_experts(reader, sizes, moe.experts);
    Linears linears(list, reader, form);
    if (!reader.status().ok()) {
        return;
    }
    add_ends(list, reader, sizes);
    add_layers(list, linears, sizes, moe, form,
               [&](const std::string& layer) { add_attention(list, sizes, dim, attention, layer); });
}

}  // namespace sluice::architectures

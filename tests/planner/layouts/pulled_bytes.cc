#include "tests/planner/layouts/pulled_bytes.h"

#include <algorithm>
#include <string>

namespace sluice::test {
namespace {

using Int = std::int64_t;

Int up(Int a, Int b) { return (a + b - 1) / b; }

class Counter {
public:
    Counter(const ModelConfig& config, WeightForm form, const WorkerLayout& layout, int rank)
        : text_(config.json().contains("text_config") ? config.json()["text_config"] : config.json()),
          vision_(config.json().contains("vision_config") ? config.json()["vision_config"] : nlohmann::json()),
          name_(config.architecture()),
          fp8_(form == WeightForm::kPublished && name_ == "DeepseekV3ForCausalLM"),
          mxfp4_(form == WeightForm::kPublished && name_ == "GptOssForCausalLM"),
          t_(layout.tp),
          r_(rank % layout.tp),
          pool_(layout.tp * layout.dp),
          q_(rank),
          ep_(layout.ep),
          redundant_(layout.redundant),
          h_(number("hidden_size")),
          nq_(number("num_attention_heads")),
          nkv_(number("num_key_value_heads", nq_)),
          hd_(number("head_dim", h_ / nq_)) {}

    Int all() const {
        const bool tied = text_.value("tie_word_embeddings", false);
        Int bytes = 2 * h_ + (tied ? 1 : 2) * vocabulary();
        for (Int layer = 0; layer < number("num_hidden_layers"); ++layer) {
            bytes += 2 * 2 * h_ + attention() + feed_forward(layer);
        }
        return bytes + vision();
    }

private:
    Int number(const char* key) const { return text_.at(key).get<Int>(); }
    Int number(const char* key, Int otherwise) const {
        return text_.contains(key) && text_[key].is_number() ? text_[key].get<Int>() : otherwise;
    }
    bool flag(const char* key) const { return text_.value(key, false); }

    // A linear layer's piece, with the scales of its 128 x 128 blocks where it is fp8.
    Int linear(Int out, Int in) const { return fp8_ ? out * in + 4 * up(out, 128) * up(in, 128) : 2 * out * in; }
    Int gated(Int local, Int hidden) const { return 2 * linear(local, hidden) + linear(hidden, local); }

    Int vocabulary() const {
        const Int v = number("vocab_size");
        const Int rows = up(v, 64) * 64 / t_;
        return 2 * h_ * (std::min((r_ + 1) * rows, v) - std::min(r_ * rows, v));
    }

    Int attention() const {
        if (name_ == "DeepseekV3ForCausalLM") {
            const Int q_rank = number("q_lora_rank");
            const Int kv_rank = number("kv_lora_rank");
            const Int nope = number("qk_nope_head_dim");
            const Int rope = number("qk_rope_head_dim");
            const Int value = number("v_head_dim");
            const Int heads = nq_ / t_;
            return linear(q_rank, h_) + linear(kv_rank + rope, h_) + 2 * (q_rank + kv_rank) +
                   linear(heads * (nope + rope), q_rank) + linear(heads * (nope + value), kv_rank) +
                   linear(h_, heads * value);
        }
        const Int q = nq_ / t_ * hd_;
        const Int kv = std::max<Int>(1, nkv_ / t_) * hd_;
        const bool oss = name_ == "GptOssForCausalLM";
        const bool bias = name_ == "Qwen2ForCausalLM" || oss || flag("attention_bias");
        const bool norms =
            name_ == "Qwen3ForCausalLM" || name_ == "Qwen3MoeForCausalLM" || (name_[0] == 'G' && flag("use_qk_norm"));
        return linear(q + 2 * kv, h_) + (bias ? 2 * (q + 2 * kv) : 0) + linear(h_, q) +
               (oss ? 2 * h_ + 2 * nq_ / t_ : 0) + (norms ? 2 * 2 * hd_ : 0);
    }

    // How many expert slots this rank has; every placement gives the first ranks one more.
    Int slots(Int experts) const {
        const Int physical = experts + redundant_;
        return ep_ ? physical / pool_ + (q_ < physical % pool_ ? 1 : 0) : experts;
    }
    Int routed(Int experts, Int width) const { return slots(experts) * gated(ep_ ? width : width / pool_, h_); }

    Int feed_forward(Int layer) const {
        if (name_ == "Qwen3MoeForCausalLM") {
            const Int experts = number("num_experts");
            return 2 * experts * h_ + routed(experts, number("moe_intermediate_size"));
        }
        if (name_ == "MixtralForCausalLM") {
            const Int experts = number("num_local_experts");
            return 2 * experts * h_ + routed(experts, number("intermediate_size"));
        }
        if (name_ == "Llama4ForConditionalGeneration") {
            const Int experts = number("num_local_experts");
            const Int width = number("intermediate_size");
            return 2 * experts * h_ + routed(experts, width) + gated(width / t_, h_);
        }
        if (name_ == "DeepseekV3ForCausalLM" || name_ == "Glm4MoeForCausalLM") {
            if (layer < number("first_k_dense_replace")) {
                return gated(number("intermediate_size") / t_, h_);
            }
            const Int experts = number("n_routed_experts");
            const Int width = number("moe_intermediate_size");
            // The router travels as bf16 also where the engine holds it in f32; the correction bias is f32.
            return 2 * experts * h_ + 4 * experts + routed(experts, width) +
                   gated(number("n_shared_experts") * width / t_, h_);
        }
        if (name_ == "GptOssForCausalLM") {
            return gpt_oss_experts();
        }
        return gated(number("intermediate_size") / t_, h_);
    }

    Int gpt_oss_experts() const {
        const Int experts = number("num_local_experts");
        const Int width = number("intermediate_size");
        const Int mine = ep_ ? experts / pool_ : experts;
        const Int cut = ep_ ? 1 : pool_;
        const Int m = ep_ ? 0 : q_;
        const Int step = mxfp4_ ? 32 * up(width / 32, cut) : up(width, cut);
        const Int rows = std::min((m + 1) * step, width) - std::min(m * step, width);
        // Pairs of gate and up rows, and columns of down: half a byte a value and one scale byte for 32, or bf16.
        const Int matrices = mxfp4_ ? 3 * rows * h_ / 2 + 3 * rows * h_ / 32 : 2 * 3 * rows * h_;
        return 2 * (experts * h_ + experts) + mine * (matrices + 2 * 2 * rows + (m == 0 ? 2 * h_ : 0));
    }

    // Replicated. The published sizes of Llama-4's vision side: patches, class and position tables, blocks with biases.
    Int vision() const {
        if (vision_.is_null()) {
            return 0;
        }
        const auto size = [&](const char* key) { return vision_.at(key).get<Int>(); };
        const Int h = size("hidden_size");
        const Int w = size("intermediate_size");
        const Int side = size("image_size") / size("patch_size");
        const Int patch = size("num_channels") * size("patch_size") * size("patch_size");
        const Int block = 4 * (h * h + h) + (w * h + w) + (h * w + h) + 4 * h;
        const Int ends = patch * h + h + (side * side + 1) * h + 4 * h;
        const Int adapter =
            size("projector_input_dim") * w + size("projector_output_dim") * size("projector_output_dim");
        return 2 * (ends + size("num_hidden_layers") * block + adapter + h_ * size("vision_output_dim"));
    }

    nlohmann::json text_;
    nlohmann::json vision_;
    std::string name_;
    bool fp8_;
    bool mxfp4_;
    Int t_, r_, pool_, q_;
    bool ep_;
    Int redundant_;
    Int h_, nq_, nkv_, hd_;
};

}  // namespace

std::int64_t pulled_bytes(const ModelConfig& config, WeightForm form, const WorkerLayout& layout, int rank) {
    return Counter(config, form, layout, rank).all();
}

}  // namespace sluice::test

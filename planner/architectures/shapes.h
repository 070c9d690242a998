#pragma once

#include "planner/catalogue.h"
#include "planner/model_config.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// What the functions from config to tensor list are written with. Internal to the planner.
namespace sluice::architectures {

/// Reads sizes from a config and remembers the first thing that is wrong, so that a tensor list reads as a list: after an
/// error sizes are 1, and status() must be asked before the result is used. Sizes are at most 2^30, so that
/// sums of two and products of two of them fit 64 bits.
class ConfigReader {
public:
    explicit ConfigReader(const ModelConfig& config) : config_(config) {}

    /// At least 1, and there.
    std::int64_t size(std::string_view key);
    /// At least 1; missing or null = `fallback`.
    std::int64_t size_or(std::string_view key, std::int64_t fallback);
    /// At least 0; missing or null = `fallback`.
    std::int64_t count_or(std::string_view key, std::int64_t fallback);
    bool flag_or(std::string_view key, bool fallback);
    /// A list of integers; missing or null = empty.
    std::vector<std::int64_t> list_or_empty(std::string_view key);
    [[nodiscard]] bool has(std::string_view key) const;
    [[nodiscard]] const ModelConfig& config() const { return config_; }

    /// `whole` / `part`, which must divide; the keys are named when they do not.
    std::int64_t divide(std::int64_t whole, std::int64_t part, std::string_view whole_key, std::string_view part_key);
    void fail(std::string message);
    [[nodiscard]] const Status& status() const { return status_; }

private:
    std::int64_t read(std::string_view key, std::int64_t least, const std::int64_t* fallback);

    const ModelConfig& config_;
    Status status_;
};

class TensorList {
public:
    void add(std::string name, Dims shape, DType dtype = DType::kBF16) {
        tensors_.push_back({std::move(name), dtype, std::move(shape), 0, {}});
    }
    void add_tied(std::string name, Dims shape, std::string target) {
        tensors_.push_back({std::move(name), DType::kBF16, std::move(shape), 0, std::move(target)});
    }
    std::vector<CatalogueTensor> take() { return std::move(tensors_); }

private:
    std::vector<CatalogueTensor> tensors_;
};

/// The sizes that every decoder has, checked (query heads a multiple of KV heads).
struct DecoderSizes {
    explicit DecoderSizes(ConfigReader& reader);

    std::int64_t hidden, vocab, layers, heads, kv_heads;
};

/// head_dim, or hidden_size / heads.
std::int64_t head_dim(ConfigReader& reader, const DecoderSizes& sizes);

/// Embedding, final norm and head below `prefix` ("" or "language_model."). A tied head is listed as tied to the embedding.
void add_ends(TensorList& list, ConfigReader& reader, const DecoderSizes& sizes, const std::string& prefix = "");
/// input_layernorm and post_attention_layernorm of a layer.
void add_layer_norms(TensorList& list, const DecoderSizes& sizes, const std::string& layer);

struct AttentionOptions {
    bool qkv_bias = false;
    bool o_bias = false;
    bool qk_norm = false;
};
/// q, k, v and o projections with biases and norms.
void add_attention(TensorList& list, const DecoderSizes& sizes, std::int64_t head_dim, const AttentionOptions& options,
                   const std::string& layer);
/// `path` + gate_proj, up_proj and down_proj.
void add_gated_mlp(TensorList& list, std::int64_t hidden, std::int64_t intermediate, const std::string& path,
                   bool bias = false);

/// The number of all experts in all layers must be in reason, since each has its own tensors.
void check_experts(ConfigReader& reader, const DecoderSizes& sizes, std::int64_t experts);

inline std::string layer_path(std::int64_t layer, const std::string& prefix = "") {
    return prefix + "model.layers." + std::to_string(layer) + ".";
}

// One function per architecture.
void llama(TensorList& list, ConfigReader& reader);
void qwen2(TensorList& list, ConfigReader& reader);
void qwen3(TensorList& list, ConfigReader& reader);
void qwen3_moe(TensorList& list, ConfigReader& reader);
void mixtral(TensorList& list, ConfigReader& reader);
void deepseek_v3(TensorList& list, ConfigReader& reader, WeightForm form);
void glm4_moe(TensorList& list, ConfigReader& reader, WeightForm form);
void llama4(TensorList& list, ConfigReader& reader);
void gpt_oss(TensorList& list, ConfigReader& reader, WeightForm form);

}  // namespace sluice::architectures

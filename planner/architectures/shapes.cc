#include "planner/architectures/shapes.h"

#include <fmt/format.h>

namespace sluice::architectures {

namespace {
constexpr std::int64_t kLargestSize = std::int64_t{1} << 30;
constexpr std::int64_t kMostExperts = 1'000'000;
constexpr std::int64_t kMostLayers = 100'000;
}  // namespace

std::int64_t ConfigReader::read(std::string_view key, std::int64_t least, const std::int64_t* fallback) {
    const nlohmann::json* value = config_.find(key);
    if (fallback != nullptr && (value == nullptr || value->is_null())) {
        return *fallback;
    }
    if (value == nullptr) {
        fail(fmt::format("config of {} has no {}; it decides shapes and must be there", config_.architecture(), key));
        return 1;
    }
    if (!value->is_number_integer() || *value < least || *value > kLargestSize) {
        fail(fmt::format("config of {}: {} is {}, it must be an integer from {} to {}", config_.architecture(), key,
                         value->dump(), least, kLargestSize));
        return 1;
    }
    return value->get<std::int64_t>();
}

std::int64_t ConfigReader::size(std::string_view key) { return read(key, 1, nullptr); }
std::int64_t ConfigReader::size_or(std::string_view key, std::int64_t fallback) { return read(key, 1, &fallback); }
std::int64_t ConfigReader::count_or(std::string_view key, std::int64_t fallback) { return read(key, 0, &fallback); }

bool ConfigReader::has(std::string_view key) const {
    const nlohmann::json* value = config_.find(key);
    return value != nullptr && !value->is_null();
}

bool ConfigReader::flag_or(std::string_view key, bool fallback) {
    if (!has(key)) {
        return fallback;
    }
    const nlohmann::json& value = *config_.find(key);
    if (!value.is_boolean()) {
        fail(
            fmt::format("config of {}: {} is {}, it must be true or false", config_.architecture(), key, value.dump()));
        return fallback;
    }
    return value.get<bool>();
}

std::vector<std::int64_t> ConfigReader::list_or_empty(std::string_view key) {
    std::vector<std::int64_t> result;
    if (!has(key)) {
        return result;
    }
    const nlohmann::json& value = *config_.find(key);
    bool good = value.is_array();
    for (const nlohmann::json& item : good ? value : nlohmann::json::array()) {
        good = good && item.is_number_integer();
        if (good) {
            result.push_back(item.get<std::int64_t>());
        }
    }
    if (!good) {
        fail(fmt::format("config of {}: {} is {}, it must be a list of integers", config_.architecture(), key,
                         value.dump()));
    }
    return result;
}

std::int64_t ConfigReader::divide(std::int64_t whole, std::int64_t part, std::string_view whole_key,
                                  std::string_view part_key) {
    if (whole % part != 0) {
        fail(fmt::format("config of {}: {} {} is no multiple of {} {}", config_.architecture(), whole_key, whole,
                         part_key, part));
        return 1;
    }
    return whole / part;
}

void ConfigReader::fail(std::string message) {
    if (status_.ok()) {
        status_ = invalid_argument(std::move(message));
    }
}

DecoderSizes::DecoderSizes(ConfigReader& reader)
    : hidden(reader.size("hidden_size")),
      vocab(reader.size("vocab_size")),
      layers(reader.size("num_hidden_layers")),
      heads(reader.size("num_attention_heads")),
      kv_heads(reader.size_or("num_key_value_heads", heads)) {
    reader.divide(heads, kv_heads, "num_attention_heads", "num_key_value_heads");
    if (layers > kMostLayers) {
        reader.fail(fmt::format("config of {}: num_hidden_layers {} is more than {}", reader.config().architecture(),
                                layers, kMostLayers));
        layers = 1;
    }
}

std::int64_t head_dim(ConfigReader& reader, const DecoderSizes& sizes) {
    return reader.has("head_dim") ? reader.size("head_dim")
                                  : reader.divide(sizes.hidden, sizes.heads, "hidden_size", "num_attention_heads");
}

void check_experts(ConfigReader& reader, const DecoderSizes& sizes, std::int64_t experts) {
    if (experts * sizes.layers > kMostExperts) {
        reader.fail(
            fmt::format("config of {}: {} experts in {} layers are more than {} expert tensors can be listed for",
                        reader.config().architecture(), experts, sizes.layers, kMostExperts));
    }
}

void add_ends(TensorList& list, ConfigReader& reader, const DecoderSizes& sizes, const std::string& prefix) {
    const std::string table = prefix + "model.embed_tokens.weight";
    const std::string head = prefix + "lm_head.weight";
    list.add(table, {sizes.vocab, sizes.hidden});
    list.add(prefix + "model.norm.weight", {sizes.hidden});
    if (reader.flag_or("tie_word_embeddings", false)) {
        list.add_tied(head, {sizes.vocab, sizes.hidden}, table);
    } else {
        list.add(head, {sizes.vocab, sizes.hidden});
    }
}

void add_layer_norms(TensorList& list, const DecoderSizes& sizes, const std::string& layer) {
    list.add(layer + "input_layernorm.weight", {sizes.hidden});
    list.add(layer + "post_attention_layernorm.weight", {sizes.hidden});
}

void add_attention(TensorList& list, const DecoderSizes& sizes, std::int64_t head_dim, const AttentionOptions& options,
                   const std::string& layer) {
    const std::string path = layer + "self_attn.";
    const std::int64_t q = sizes.heads * head_dim;
    const std::int64_t kv = sizes.kv_heads * head_dim;
    const auto projection = [&](const char* name, std::int64_t out, std::int64_t in, bool bias) {
        list.add(path + name + ".weight", {out, in});
        if (bias) {
            list.add(path + name + ".bias", {out});
        }
    };
    projection("q_proj", q, sizes.hidden, options.qkv_bias);
    projection("k_proj", kv, sizes.hidden, options.qkv_bias);
    projection("v_proj", kv, sizes.hidden, options.qkv_bias);
    projection("o_proj", sizes.hidden, q, options.o_bias);
    if (options.qk_norm) {
        list.add(path + "q_norm.weight", {head_dim});
        list.add(path + "k_norm.weight", {head_dim});
    }
}

void add_gated_mlp(TensorList& list, std::int64_t hidden, std::int64_t intermediate, const std::string& path,
                   bool bias) {
    const auto projection = [&](const char* name, std::int64_t out, std::int64_t in) {
        list.add(path + name + ".weight", {out, in});
        if (bias) {
            list.add(path + name + ".bias", {out});
        }
    };
    projection("gate_proj", intermediate, hidden);
    projection("up_proj", intermediate, hidden);
    projection("down_proj", hidden, intermediate);
}

}  // namespace sluice::architectures

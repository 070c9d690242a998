// Every element of every parameter of small models with the real structure, against the written rules (reference:
// engine loaders, P1-P9), as formulas from a parameter's coordinate to a checkpoint tensor's. Nothing here uses the
// recorder.
#include "planner/coverage.h"
#include "planner/dry_run.h"
#include "tests/planner/demand_memory.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sluice::test {
namespace {

using Source = std::optional<std::pair<std::string, Index>>;  // nothing = zero

struct Wanted {
    Dims shape;
    DType dtype;
    std::function<Source(const Index&)> source;
};

// What rank `rank` of a pool of t * d wants, filled rule by rule.
struct Oracle {
    std::int64_t t = 1, d = 1, rank = 0;
    bool ep = false, round_robin = false;
    std::int64_t redundant = 0;
    std::map<std::string, Wanted> parameters{};

    std::int64_t r() const { return rank % t; }

    void whole(const std::string& name, const Dims& shape, DType dtype = DType::kBF16, std::string from = "") {
        from = from.empty() ? name : from;
        parameters[name] = {shape, dtype, [from](const Index& at) { return Source({from, at}); }};
    }
    struct Part {
        std::string from;
        std::int64_t begin, count;
    };
    // Rows [begin, begin + count) of each part, one below the other.
    void rows(const std::string& name, const std::vector<Part>& parts, const Dims& tail, DType dtype = DType::kBF16) {
        Dims shape{0};
        for (const Part& part : parts) {
            shape[0] += part.count;
        }
        shape.insert(shape.end(), tail.begin(), tail.end());
        parameters[name] = {shape, dtype, [parts](Index at) -> Source {
                                for (const Part& part : parts) {
                                    if (at[0] < part.count) {
                                        at[0] += part.begin;
                                        return Source({part.from, at});
                                    }
                                    at[0] -= part.count;
                                }
                                return std::nullopt;
                            }};
    }
    void columns(const std::string& name, const std::string& from, std::int64_t height, std::int64_t width,
                 DType dtype = DType::kBF16) {
        const std::int64_t count = width / t;
        const std::int64_t begin = r() * count;
        parameters[name] = {
            {height, count}, dtype, [=](const Index& at) { return Source({from, {at[0], at[1] + begin}}); }};
    }
    void column(const std::string& name, std::int64_t out, const Dims& tail) {
        rows(name, {{name, r() * (out / t), out / t}}, tail);
    }
    void vocabulary(const std::string& name, const std::string& from, std::int64_t v, std::int64_t hidden) {
        const std::int64_t local = (v + 63) / 64 * 64 / t;
        const std::int64_t first = r() * local;
        parameters[name] = {{local, hidden}, DType::kBF16, [=](const Index& at) {
                                return first + at[0] < v ? Source({from, {first + at[0], at[1]}}) : std::nullopt;
                            }};
    }
    void ends(std::int64_t v, std::int64_t hidden, bool tied, const std::string& prefix = "") {
        vocabulary(prefix + "model.embed_tokens.weight", prefix + "model.embed_tokens.weight", v, hidden);
        whole(prefix + "model.norm.weight", {hidden});
        if (!tied) {
            vocabulary(prefix + "lm_head.weight", prefix + "lm_head.weight", v, hidden);
        }
    }
    void qkv(const std::string& target, const std::string& source, std::int64_t nq, std::int64_t nkv, std::int64_t hd,
             const std::string& suffix, const Dims& tail) {
        const std::int64_t rep = t >= nkv ? t / nkv : 1;
        const std::int64_t local_kv = std::max<std::int64_t>(1, nkv / t) * hd;
        const std::int64_t local_q = nq / t * hd;
        rows(target + "qkv_proj." + suffix,
             {{source + "q_proj." + suffix, r() * local_q, local_q},
              {source + "k_proj." + suffix, r() / rep * local_kv, local_kv},
              {source + "v_proj." + suffix, r() / rep * local_kv, local_kv}},
             tail);
    }
    void attention(const std::string& layer, std::int64_t nq, std::int64_t nkv, std::int64_t hd, std::int64_t hidden,
                   bool bias, bool norms) {
        const std::string at = layer + "self_attn.";
        qkv(at, at, nq, nkv, hd, "weight", {hidden});
        if (bias) {
            qkv(at, at, nq, nkv, hd, "bias", {});
        }
        columns(at + "o_proj.weight", at + "o_proj.weight", hidden, nq * hd);
        if (norms) {
            whole(at + "q_norm.weight", {hd});
            whole(at + "k_norm.weight", {hd});
        }
        whole(layer + "input_layernorm.weight", {hidden});
        whole(layer + "post_attention_layernorm.weight", {hidden});
    }
    void mlp(const std::string& at, std::int64_t width, std::int64_t hidden) {
        const std::int64_t count = width / t;
        rows(at + "gate_up_proj.weight",
             {{at + "gate_proj.weight", r() * count, count}, {at + "up_proj.weight", r() * count, count}}, {hidden});
        columns(at + "down_proj.weight", at + "down_proj.weight", hidden, width);
    }
    // Logical expert of each local slot.
    std::vector<std::int64_t> experts(std::int64_t count, std::int64_t groups) const {
        const std::int64_t ranks = ep ? t * d : 1;
        const std::int64_t me = ep ? rank : 0;
        std::vector<std::vector<std::int64_t>> held(static_cast<std::size_t>(ranks));
        const std::int64_t slots = count + redundant;
        const bool round = round_robin && groups > 1 && redundant == 0;
        std::int64_t slot = 0;
        for (std::int64_t q = 0; q < ranks; ++q) {
            for (std::int64_t n = slots / ranks + (q < slots % ranks ? 1 : 0); n > 0; --n, ++slot) {
                held[static_cast<std::size_t>(round ? slot % ranks : q)].push_back(slot % count);
            }
        }
        return held[static_cast<std::size_t>(me)];
    }
    std::int64_t moe_cut() const { return ep ? 1 : t * d; }
    std::int64_t moe_rank() const { return ep ? 0 : rank; }

    void routed(const std::string& at, std::int64_t count, std::int64_t width, std::int64_t hidden,
                std::int64_t groups = 1, const std::string& gate = "gate_proj", const std::string& up = "up_proj",
                const std::string& down = "down_proj") {
        const std::vector<std::int64_t> mine = experts(count, groups);
        const auto slots = static_cast<std::int64_t>(mine.size());
        const std::int64_t local = width / moe_cut();
        const std::int64_t begin = moe_rank() * local;
        const auto name = [mine, at](std::int64_t slot, const std::string& projection) {
            return at + std::to_string(mine[static_cast<std::size_t>(slot)]) + "." + projection + ".weight";
        };
        parameters[at + "w13_weight"] = {
            {slots, 2 * local, hidden}, DType::kBF16, [=](const Index& i) {
                const bool is_up = i[1] >= local;
                return Source({name(i[0], is_up ? up : gate), {begin + i[1] - (is_up ? local : 0), i[2]}});
            }};
        parameters[at + "w2_weight"] = {{slots, hidden, local}, DType::kBF16, [=](const Index& i) {
                                            return Source({name(i[0], down), {i[1], begin + i[2]}});
                                        }};
    }
};

ModelConfig make_config(const std::string& architecture, const char* json) {
    return ModelConfig::create(nlohmann::json::parse(json), architecture).value();
}

struct Combination {
    int tp, dp;
    bool ep = false, round_robin = false;
    int redundant = 0;
};

// Compares every rank of the layout with the oracle that `fill` writes.
void compare(const ModelConfig& config, const Catalogue& catalogue, const Combination& c,
             const std::function<void(Oracle&)>& fill, const std::set<std::string>& unread = {}) {
    SCOPED_TRACE(config.architecture() + " tp=" + std::to_string(c.tp) + " dp=" + std::to_string(c.dp) +
                 " ep=" + std::to_string(c.ep) + " redundant=" + std::to_string(c.redundant));
    const WorkerLayout layout{.tp = c.tp,
                              .dp = c.dp,
                              .ep = c.ep,
                              .replicas = 1,
                              .placement = c.round_robin ? ExpertPlacement::kRoundRobin : ExpertPlacement::kLinear,
                              .redundant = c.redundant};
    std::vector<Demand> demands;
    for (int rank = 0; rank < layout.pool_size(); ++rank) {
        SCOPED_TRACE("rank " + std::to_string(rank));
        Result<Demand> result = dry_run(catalogue, config, layout, rank);
        ASSERT_TRUE(result.ok()) << result.status().message();
        demands.push_back(std::move(result).value());
        const Demand& demand = demands.back();
        Oracle oracle{
            .t = c.tp, .d = c.dp, .rank = rank, .ep = c.ep, .round_robin = c.round_robin, .redundant = c.redundant};
        fill(oracle);

        ASSERT_EQ(demand.parameters.size(), oracle.parameters.size());
        const DemandMemory memory(demand);
        ASSERT_TRUE(memory.faults().empty()) << memory.faults().front();
        std::int64_t zero_bytes = 0;
        for (std::size_t p = 0; p < demand.parameters.size(); ++p) {
            const Parameter& parameter = demand.parameters[p];
            SCOPED_TRACE(parameter.name);
            const auto wanted = oracle.parameters.find(parameter.name);
            ASSERT_NE(wanted, oracle.parameters.end());
            ASSERT_EQ(parameter.shape, wanted->second.shape);
            ASSERT_EQ(parameter.dtype, wanted->second.dtype);
            Index at(parameter.shape.size(), 0);
            for (std::size_t i = 0; i < memory.parameter(p).size(); ++i) {
                std::int64_t rest = static_cast<std::int64_t>(i);
                for (std::size_t k = at.size(); k-- > 0;) {
                    at[k] = rest % parameter.shape[k];
                    rest /= parameter.shape[k];
                }
                const Source source = wanted->second.source(at);
                Origin expected = kZero;
                if (source) {
                    const auto id = catalogue.find(source->first);
                    ASSERT_TRUE(id.has_value()) << source->first;
                    const CatalogueTensor& tensor = catalogue[*id];
                    std::int64_t flat = 0;
                    for (std::size_t k = 0; k < tensor.shape.size(); ++k) {
                        ASSERT_LT(source->second[k], tensor.shape[k]);
                        flat = flat * tensor.shape[k] + source->second[k];
                    }
                    expected = {*id, tensor.dtype, flat * size_of(tensor.dtype)};
                } else {
                    zero_bytes += size_of(parameter.dtype);
                }
                ASSERT_EQ(memory.parameter(p)[i].size(), 1U) << "at " << testing::PrintToString(at);
                ASSERT_EQ(memory.parameter(p)[i].front(), expected) << "at " << testing::PrintToString(at);
            }
        }
        const DemandCoverage coverage = prove_coverage(demand);
        EXPECT_TRUE(coverage.status.ok()) << coverage.status.message();
        EXPECT_EQ(coverage.padding_bytes, zero_bytes);
    }
    std::vector<const Demand*> all;
    for (const Demand& demand : demands) {
        all.push_back(&demand);
    }
    const SourceCoverage sources = source_coverage(catalogue, all);
    std::set<std::string> unread_names;
    for (const TensorId id : sources.unread) {
        unread_names.insert(catalogue[id].name);
    }
    EXPECT_EQ(unread_names, unread);
    EXPECT_TRUE(sources.partly_read.empty());
}

void compare(const ModelConfig& config, const Combination& c, const std::function<void(Oracle&)>& fill,
             const std::set<std::string>& unread = {}) {
    const Result<Catalogue> catalogue = checkpoint_catalogue(config);
    ASSERT_TRUE(catalogue.ok()) << catalogue.status().message();
    compare(config, *catalogue, c, fill, unread);
}

std::string layer_name(int n) { return "model.layers." + std::to_string(n) + "."; }

// Query width 32 with a hidden size of 24; fewer KV heads than ranks from tp=4 on; 1010 rows pad to 1024.
constexpr const char* kDense = R"({"hidden_size": 24, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 1010,
    "tie_word_embeddings": false})";

void dense(Oracle& o, bool bias, bool norms, bool tied) {
    o.ends(1010, 24, tied);
    for (int n = 0; n < 2; ++n) {
        o.attention(layer_name(n), 8, 2, 4, 24, bias, norms);
        o.mlp(layer_name(n) + "mlp.", 16, 24);
    }
}

TEST(LoaderOracle, DenseModels) {
    for (const Combination& c : {Combination{1, 1}, {2, 1}, {4, 1}, {8, 1}, {2, 2}}) {
        compare(make_config("Qwen3ForCausalLM", kDense), c, [](Oracle& o) { dense(o, false, true, false); });
        compare(make_config("LlamaForCausalLM", kDense), c, [](Oracle& o) { dense(o, false, false, false); });
        compare(make_config("Qwen2ForCausalLM", kDense), c, [](Oracle& o) { dense(o, true, false, false); });
    }
}

// Traps 3 and 6: the head of a tied model is stored, and neither pulled nor a parameter.
TEST(LoaderOracle, TiedEmbeddings) {
    nlohmann::json json = nlohmann::json::parse(kDense);
    json["tie_word_embeddings"] = true;
    const ModelConfig config = ModelConfig::create(json, "Qwen3ForCausalLM").value();
    compare(config, {4, 1}, [](Oracle& o) { dense(o, false, true, true); }, {"lm_head.weight"});
}

constexpr const char* kMoe =
    R"({"hidden_size": 24, "intermediate_size": 16, "num_hidden_layers": 3, "mlp_only_layers": [1],
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 70, "tie_word_embeddings": false,
    "moe_intermediate_size": 8, "num_experts": 10, "decoder_sparse_step": 1})";

void moe(Oracle& o) {
    o.ends(70, 24, false);
    for (int n = 0; n < 3; ++n) {
        o.attention(layer_name(n), 8, 2, 4, 24, false, true);
        const std::string at = layer_name(n) + "mlp.";
        if (n == 1) {
            o.mlp(at, 16, 24);
            continue;
        }
        o.whole(at + "gate.weight", {10, 24});
        o.routed(at + "experts.", 10, 8, 24);
    }
}

TEST(LoaderOracle, Qwen3Moe) {
    for (const Combination& c : {Combination{1, 1, false},
                                 {1, 1, true},
                                 {2, 1, false},
                                 {2, 1, true},
                                 {4, 2, false},
                                 {2, 2, true},
                                 {1, 3, true},
                                 {8, 1, true},
                                 {2, 2, true, false, 2},
                                 {4, 1, true, true}}) {
        compare(make_config("Qwen3MoeForCausalLM", kMoe), c, moe);
    }
}

TEST(LoaderOracle, Mixtral) {
    const ModelConfig config = make_config("MixtralForCausalLM", R"({"hidden_size": 16, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
        "num_local_experts": 4, "tie_word_embeddings": false})");
    for (const Combination& c : {Combination{1, 1, false}, {4, 1, false}, {2, 2, false}, {2, 1, true}}) {
        compare(config, c, [](Oracle& o) {
            o.ends(64, 16, false);
            o.attention(layer_name(0), 4, 2, 4, 16, false, false);
            const std::string block = layer_name(0) + "block_sparse_moe.";
            o.whole(block + "gate.weight", {4, 16});
            o.routed(block + "experts.", 4, 8, 16, 1, "w1", "w3", "w2");
        });
    }
}

TEST(LoaderOracle, DeepSeekV3) {
    const ModelConfig config = make_config("DeepseekV3ForCausalLM", R"({"hidden_size": 16, "intermediate_size": 24,
        "moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
        "vocab_size": 64, "n_routed_experts": 6, "n_shared_experts": 1, "n_group": 2, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "q_lora_rank": 10, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
        "v_head_dim": 4, "tie_word_embeddings": false})");
    for (const Combination& c : {Combination{1, 1, false},
                                 {4, 1, false},
                                 {2, 1, true},
                                 {2, 2, true, true},
                                 {4, 1, true, false, 2},
                                 {4, 2, false}}) {
        compare(config, c, [](Oracle& o) {
            o.ends(64, 16, false);
            for (int n = 0; n < 2; ++n) {
                const std::string layer = layer_name(n);
                const std::string at = layer + "self_attn.";
                o.whole(layer + "input_layernorm.weight", {16});
                o.whole(layer + "post_attention_layernorm.weight", {16});
                o.rows(at + "fused_qkv_a_proj.weight",
                       {{at + "q_a_proj.weight", 0, 10}, {at + "kv_a_proj_with_mqa.weight", 0, 8}}, {16});
                o.whole(at + "q_a_layernorm.weight", {10});
                o.whole(at + "kv_a_layernorm.weight", {6});
                o.column(at + "q_b_proj.weight", 4 * 6, {10});
                o.column(at + "kv_b_proj.weight", 4 * 8, {6});
                o.columns(at + "o_proj.weight", at + "o_proj.weight", 16, 4 * 4);
                const std::string mlp = layer + "mlp.";
                if (n == 0) {
                    o.mlp(mlp, 24, 16);
                    continue;
                }
                o.whole(mlp + "gate.weight", {6, 16});
                o.whole(mlp + "gate.e_score_correction_bias", {6}, DType::kF32);
                o.routed(mlp + "experts.", 6, 8, 16, 2);
                o.mlp(mlp + "shared_experts.", 8, 16);
            }
        });
    }
}

TEST(LoaderOracle, Glm4Moe) {
    const ModelConfig config = make_config("Glm4MoeForCausalLM", R"({"hidden_size": 16, "intermediate_size": 24,
        "moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 4, "vocab_size": 64, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "attention_bias": true, "use_qk_norm": false, "tie_word_embeddings": false})");
    for (const Combination& c : {Combination{1, 1, false}, {8, 1, false}, {2, 2, true}}) {
        compare(config, c, [](Oracle& o) {
            o.ends(64, 16, false);
            for (int n = 0; n < 2; ++n) {
                o.attention(layer_name(n), 8, 2, 4, 16, true, false);
                const std::string mlp = layer_name(n) + "mlp.";
                if (n == 0) {
                    o.mlp(mlp, 24, 16);
                    continue;
                }
                // The router is held in f32 although the checkpoint has bf16 (trap 16).
                o.whole(mlp + "gate.weight", {4, 16}, DType::kF32);
                o.whole(mlp + "gate.e_score_correction_bias", {4}, DType::kF32);
                o.routed(mlp + "experts.", 4, 8, 16);
                o.mlp(mlp + "shared_experts.", 8, 16);
            }
        });
    }
}

// Traps 12 and 13, and case L18: rotary permutation before the cut, input-major fused experts.
TEST(LoaderOracle, Llama4) {
    const ModelConfig config = make_config("Llama4ForConditionalGeneration", R"({"text_config": {"hidden_size": 16,
        "intermediate_size": 8, "intermediate_size_mlp": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "num_local_experts": 4,
        "interleave_moe_layer_step": 2, "attention_bias": false, "tie_word_embeddings": false},
        "vision_config": {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 8, "patch_size": 4, "num_channels": 3, "projector_input_dim": 4, "projector_output_dim": 4,
        "vision_output_dim": 4}})");
    const Catalogue catalogue = checkpoint_catalogue(config).value();
    for (const Combination& c : {Combination{1, 1, false}, {2, 1, false}, {4, 1, false}, {2, 2, true}, {1, 3, true}}) {
        compare(config, catalogue, c, [&](Oracle& o) {
            const std::string prefix = "language_model.";
            o.ends(64, 16, false, prefix);
            for (int n = 0; n < 2; ++n) {
                const std::string layer = prefix + layer_name(n);
                const std::string at = layer + "self_attn.";
                o.attention(layer, 4, 2, 8, 16, false, false);
                // New row 8h + 4p + i is row 8h + 2i + p; v stays.
                Wanted& qkv = o.parameters[at + "qkv_proj.weight"];
                qkv.source = [plain = qkv.source, at](const Index& i) {
                    Source source = plain(i);
                    if (source->first != at + "v_proj.weight") {
                        const std::int64_t row = source->second[0];
                        source->second[0] = row / 8 * 8 + row % 4 * 2 + row % 8 / 4;
                    }
                    return source;
                };
                const std::string block = layer + "feed_forward.";
                if (n == 0) {
                    o.mlp(block, 24, 16);
                    continue;
                }
                o.whole(block + "router.weight", {4, 16});
                o.mlp(block + "shared_expert.", 8, 16);
                const std::vector<std::int64_t> mine = o.experts(4, 1);
                const auto slots = static_cast<std::int64_t>(mine.size());
                const std::int64_t local = 8 / o.moe_cut();
                const std::int64_t begin = o.moe_rank() * local;
                o.parameters[block + "experts.w13_weight"] = {
                    {slots, 2 * local, 16}, DType::kBF16, [=](const Index& i) {
                        const std::int64_t column = i[1] < local ? begin + i[1] : 8 + begin + i[1] - local;
                        return Source(
                            {block + "experts.gate_up_proj", {mine[static_cast<std::size_t>(i[0])], i[2], column}});
                    }};
                o.parameters[block + "experts.w2_weight"] = {
                    {slots, 16, local}, DType::kBF16, [=](const Index& i) {
                        return Source(
                            {block + "experts.down_proj", {mine[static_cast<std::size_t>(i[0])], begin + i[2], i[1]}});
                    }};
            }
            for (const CatalogueTensor& tensor : catalogue.tensors()) {
                if (!tensor.name.starts_with(prefix)) {
                    o.whole(tensor.name, tensor.shape);
                }
            }
        });
    }
}

constexpr const char* kGptOss = R"({"hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4, "vocab_size": 64, "num_local_experts": 4,
    "attention_bias": true, "tie_word_embeddings": false, "quantization_config": {"quant_method": "mxfp4"}})";

// `unit` is what a cut of an expert's width must be a multiple of: 1, or an mxfp4 block.
void gpt_oss(Oracle& o, bool mxfp4) {
    o.vocabulary("model.embedding.weight", "model.embed_tokens.weight", 64, 96);
    o.vocabulary("lm_head.weight", "lm_head.weight", 64, 96);
    o.whole("model.norm.weight", {96});
    const std::string layer = layer_name(0);
    o.whole(layer + "input_layernorm.weight", {96});
    o.whole(layer + "post_attention_layernorm.weight", {96});
    const std::string from = layer + "self_attn.";
    const std::string to = layer + "attn.";
    o.qkv(to, from, 8, 4, 4, "weight", {96});
    o.qkv(to, from, 8, 4, 4, "bias", {});
    o.columns(to + "o_proj.weight", from + "o_proj.weight", 96, 32);
    o.whole(to + "o_proj.bias", {96}, DType::kBF16, from + "o_proj.bias");
    o.rows(to + "sinks", {{from + "sinks", o.r() * (8 / o.t), 8 / o.t}}, {});
    o.whole(layer + "mlp.router.weight", {4, 96});
    o.whole(layer + "mlp.router.bias", {4});

    const std::string at = layer + "mlp.experts.";
    const std::int64_t slots = o.ep ? 4 / (o.t * o.d) : 4;
    const std::int64_t first = o.ep ? o.rank * slots : 0;
    const std::int64_t cut = o.moe_cut();
    const std::int64_t step = mxfp4 ? 32 * ((96 / 32 + cut - 1) / cut) : (96 + cut - 1) / cut;
    const std::int64_t a = std::min<std::int64_t>(o.moe_rank() * step, 96);
    const std::int64_t b = std::min<std::int64_t>(a + step, 96);
    o.parameters[at + "w13_bias"] = {
        {slots, 2 * step}, DType::kBF16, [=](const Index& i) {
            return i[1] < 2 * (b - a) ? Source({at + "gate_up_proj_bias", {first + i[0], 2 * a + i[1]}}) : std::nullopt;
        }};
    o.parameters[at + "w2_bias"] = {{slots, 96}, DType::kBF16, [=, zero = o.moe_rank() != 0](const Index& i) {
                                        return zero ? std::nullopt
                                                    : Source({at + "down_proj_bias", {first + i[0], i[1]}});
                                    }};
    if (!mxfp4) {
        o.parameters[at + "w13_weight"] = {
            {slots, 2 * step, 96}, DType::kBF16, [=](const Index& i) {
                return i[1] < 2 * (b - a) ? Source({at + "gate_up_proj", {first + i[0], i[2], 2 * a + i[1]}})
                                          : std::nullopt;
            }};
        o.parameters[at + "w2_weight"] = {
            {slots, 96, step}, DType::kBF16, [=](const Index& i) {
                return i[2] < b - a ? Source({at + "down_proj", {first + i[0], a + i[2], i[1]}}) : std::nullopt;
            }};
        return;
    }
    o.parameters[at + "w13_weight"] = {
        {slots, 2 * step, 48}, DType::kU8, [=](const Index& i) {
            return i[1] < 2 * (b - a)
                       ? Source({at + "gate_up_proj_blocks", {first + i[0], 2 * a + i[1], i[2] / 16, i[2] % 16}})
                       : std::nullopt;
        }};
    o.parameters[at + "w13_weight_scale"] = {
        {slots, 2 * step, 3}, DType::kU8, [=](const Index& i) {
            return i[1] < 2 * (b - a) ? Source({at + "gate_up_proj_scales", {first + i[0], 2 * a + i[1], i[2]}})
                                      : std::nullopt;
        }};
    o.parameters[at + "w2_weight"] = {
        {slots, 96, step / 2}, DType::kU8, [=](const Index& i) {
            const std::int64_t byte = a / 2 + i[2];
            return byte < b / 2 ? Source({at + "down_proj_blocks", {first + i[0], i[1], byte / 16, byte % 16}})
                                : std::nullopt;
        }};
    o.parameters[at + "w2_weight_scale"] = {
        {slots, 96, step / 32}, DType::kU8, [=](const Index& i) {
            const std::int64_t block = a / 32 + i[2];
            return block < b / 32 ? Source({at + "down_proj_scales", {first + i[0], i[1], block}}) : std::nullopt;
        }};
}

// Uneven splits, an empty last rank, interleaved rows, and a bias that only the first rank has (trap 7).
TEST(LoaderOracle, GptOss) {
    const ModelConfig config = make_config("GptOssForCausalLM", kGptOss);
    const Catalogue published = checkpoint_catalogue(config, WeightForm::kPublished).value();
    for (const Combination& c : {Combination{1, 1, false}, {2, 1, false}, {4, 1, false}, {2, 1, true}, {2, 2, true}}) {
        compare(config, c, [](Oracle& o) { gpt_oss(o, false); });
        compare(config, published, c, [](Oracle& o) { gpt_oss(o, true); });
    }
}

// DeepSeek as published: fp8 with a scale for each block of the weight.
TEST(LoaderOracle, BlockScales) {
    const ModelConfig config = make_config("DeepseekV3ForCausalLM", R"({"hidden_size": 8, "intermediate_size": 8,
        "moe_intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
        "vocab_size": 64, "n_routed_experts": 2, "n_shared_experts": 1, "first_k_dense_replace": 0, "q_lora_rank": 6,
        "kv_lora_rank": 4, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "v_head_dim": 2, "tie_word_embeddings": false,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]}})");
    const Catalogue catalogue = checkpoint_catalogue(config, WeightForm::kPublished).value();
    const WorkerLayout layout{.tp = 2};
    for (int rank = 0; rank < 2; ++rank) {
        const Demand demand = dry_run(catalogue, config, layout, rank).value();
        ASSERT_TRUE(prove_coverage(demand).status.ok()) << prove_coverage(demand).status.message();
        const DemandMemory memory(demand);
        const auto first = [&](const std::string& name, const Dims& shape, DType dtype) -> Origin {
            for (std::size_t p = 0; p < demand.parameters.size(); ++p) {
                if (demand.parameters[p].name == "model.layers.0." + name) {
                    EXPECT_EQ(demand.parameters[p].shape, shape) << name;
                    EXPECT_EQ(demand.parameters[p].dtype, dtype) << name;
                    return memory.parameter(p).front().front();
                }
            }
            ADD_FAILURE() << name;
            return kZero;
        };
        const DType f8 = DType::kF8E4M3;
        const DType f32 = DType::kF32;
        first("self_attn.fused_qkv_a_proj.weight", {12, 8}, f8);
        first("self_attn.fused_qkv_a_proj.weight_scale_inv", {4, 2}, f32);  // 6 rows give 2, 6 rows give 2
        EXPECT_EQ(first("self_attn.q_b_proj.weight", {8, 6}, f8).byte, rank * 8 * 6);
        EXPECT_EQ(first("self_attn.q_b_proj.weight_scale_inv", {2, 2}, f32).byte, rank * 2 * 2 * 4);
        EXPECT_EQ(first("self_attn.o_proj.weight_scale_inv", {2, 1}, f32).byte, rank * 4);
        EXPECT_EQ(first("mlp.experts.w13_weight_scale_inv", {2, 2, 2}, f32).byte, rank * 2 * 4);
        EXPECT_EQ(first("mlp.experts.w2_weight_scale_inv", {2, 2, 1}, f32).byte, rank * 4);
    }
    // Trap 14: a cut inside a block is refused.
    const Result<Demand> refused = dry_run(catalogue, config, WorkerLayout{.tp = 4}, 0);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kPlanRefused);
    EXPECT_NE(refused.status().message().find("scale block of 4"), std::string::npos) << refused.status().message();
}

// Fused experts as a trainer holds them in memory, in both orientations, with redundant slots; a square one is refused.
TEST(LoaderOracle, FusedExpertsOfTheTrainer) {
    const ModelConfig config = make_config("Qwen3MoeForCausalLM", kMoe);
    const auto fused_catalogue = [&](bool transposed, std::int64_t width, const ModelConfig& from) {
        const Catalogue plain = checkpoint_catalogue(from).value();
        std::vector<CatalogueTensor> tensors;
        for (const CatalogueTensor& tensor : plain.tensors()) {
            if (tensor.name.find(".experts.") == std::string::npos) {
                tensors.push_back(tensor);
            }
        }
        for (const int n : {0, 2}) {
            const std::string at = layer_name(n) + "mlp.experts.";
            tensors.push_back({at + "gate_up_proj",
                               DType::kBF16,
                               transposed ? Dims{10, 24, 2 * width} : Dims{10, 2 * width, 24},
                               0,
                               {}});
            tensors.push_back(
                {at + "down_proj", DType::kBF16, transposed ? Dims{10, width, 24} : Dims{10, 24, width}, 0, {}});
        }
        return Catalogue::create(tensors, 3).value();
    };
    for (const bool transposed : {false, true}) {
        const Catalogue catalogue = fused_catalogue(transposed, 8, config);
        for (const Combination& c : {Combination{2, 2, false}, {2, 1, true}, {2, 2, true, false, 2}}) {
            compare(config, catalogue, c, [&](Oracle& o) {
                moe(o);
                for (const int n : {0, 2}) {
                    const std::string at = layer_name(n) + "mlp.experts.";
                    for (const bool in : {true, false}) {
                        Wanted& wanted = o.parameters[at + (in ? "w13_weight" : "w2_weight")];
                        // ...experts.7.up_proj.weight [row, column] is a part of expert 7 of the fused tensor.
                        wanted.source = [plain = wanted.source, at, in, transposed](const Index& i) {
                            const Source source = plain(i);
                            const std::int64_t expert = std::stoll(source->first.substr(at.size()));
                            const bool up = source->first.find("up_proj") != std::string::npos;
                            Index out{expert, source->second[0] + (in && up ? 8 : 0), source->second[1]};
                            if (transposed) {
                                std::swap(out[1], out[2]);
                            }
                            return Source({at + (in ? "gate_up_proj" : "down_proj"), out});
                        };
                    }
                }
            });
        }
    }
    nlohmann::json square = nlohmann::json::parse(kMoe);
    square["moe_intermediate_size"] = 12;  // 2M == H
    const ModelConfig ambiguous = ModelConfig::create(square, "Qwen3MoeForCausalLM").value();
    const Result<Demand> refused = dry_run(fused_catalogue(false, 12, ambiguous), ambiguous, WorkerLayout{}, 0);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("orientation"), std::string::npos) << refused.status().message();
}

}  // namespace
}  // namespace sluice::test

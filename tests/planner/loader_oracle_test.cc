// Dense models and mixtures whose experts have tensors of their own.
#include "planner/dry_run.h"
#include "tests/planner/parameter_oracle.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice::test {
namespace {

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

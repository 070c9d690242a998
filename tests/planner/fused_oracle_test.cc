// Models with fused expert tensors, packed values or scales.
#include "planner/coverage.h"
#include "planner/dry_run.h"
#include "planner/router.h"
#include "planner/trainer_ownership.h"
#include "tests/planner/demand_memory.h"
#include "tests/planner/parameter_oracle.h"
#include "tests/planner/plan_execution.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

namespace sluice::test {
namespace {

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
        "vocab_size": 64, "n_routed_experts": 2, "n_shared_experts": 1, "first_k_dense_replace": 0, "q_lora_rank": 8,
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
        first("self_attn.fused_qkv_a_proj.weight", {14, 8}, f8);
        first("self_attn.fused_qkv_a_proj.weight_scale_inv", {4, 2}, f32);  // 8 rows give 2, 6 rows give 2
        EXPECT_EQ(first("self_attn.q_b_proj.weight", {8, 8}, f8).byte, rank * 8 * 8);
        EXPECT_EQ(first("self_attn.q_b_proj.weight_scale_inv", {2, 2}, f32).byte, rank * 2 * 2 * 4);
        EXPECT_EQ(first("self_attn.o_proj.weight_scale_inv", {2, 1}, f32).byte, rank * 4);
        EXPECT_EQ(first("mlp.experts.w13_weight_scale_inv", {2, 2, 2}, f32).byte, rank * 2 * 4);
        EXPECT_EQ(first("mlp.experts.w2_weight_scale_inv", {2, 2, 1}, f32).byte, rank * 4);
    }
    // A trainer cuts its scales by the same blocks.
    const SmallModel model = with_bytes(config, catalogue);
    const TrainerLayout trainer = TrainerLayout::parse("tp=2,ep=2").value();
    std::vector<Ownership> owners;
    std::vector<OwnerMemory> memory;
    for (int rank = 0; rank < trainer.world_size(); ++rank) {
        owners.push_back(trainer_ownership(catalogue, config, trainer, rank, SourceKind::kResident).value());
        memory.push_back(fill_owner(model, owners.back()));
    }
    const Demand demand = dry_run(catalogue, config, layout, 1).value();
    const DemandRequest request{&demand, {0}, {}, -1};
    const Result<Plan> plan = route(catalogue, owners, std::span(&request, 1), {});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(execute(plan->routes[0], demand, memory, 4 << 20), expected_parameters(model, demand));
    // Trap 14: a cut inside a block is refused.
    const Result<Demand> refused = dry_run(catalogue, config, WorkerLayout{.tp = 4}, 0);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kPlanRefused);
    EXPECT_NE(refused.status().message().find("scale block of 4"), std::string::npos) << refused.status().message();
}

}  // namespace
}  // namespace sluice::test

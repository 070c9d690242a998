// Loaders at full size: the worked numbers of the loader reference, and refusals.
#include "planner/loaders/load_context.h"
#include "tests/planner/loader_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace sluice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(WorkedNumbers, Qwen3Moe235B) {
    const Model m = model("Qwen3-235B-A22B", 1);
    const Demand tp = run(m, {.tp = 8}, 5);
    EXPECT_THAT(slices(m, tp, "qkv_proj.weight"),
                ElementsAre("self_attn.q_proj.weight 5120-6143,0-4095 -> 0-1023,0-4095",
                            "self_attn.k_proj.weight 256-383,0-4095 -> 1024-1151,0-4095",
                            "self_attn.v_proj.weight 256-383,0-4095 -> 1152-1279,0-4095"));
    EXPECT_THAT(slices(m, tp, "o_proj.weight"),
                ElementsAre("self_attn.o_proj.weight 0-4095,5120-6143 -> 0-4095,0-1023"));
    EXPECT_THAT(slices(m, tp, "embed_tokens.weight"),
                ElementsAre("model.embed_tokens.weight 94960-113951,0-4095 -> 0-18991,0-4095"));
    // Experts cut: 192 of 1536 rows each.
    EXPECT_EQ(shape_of(tp, "w13_weight"), Dims({128, 384, 4096}));
    EXPECT_EQ(shape_of(tp, "w2_weight"), Dims({128, 4096, 192}));
    EXPECT_THAT(slices(m, tp, "w13_weight"),
                testing::IsSupersetOf({"mlp.experts.7.gate_proj.weight 960-1151,0-4095 -> 7-7,0-191,0-4095",
                                       "mlp.experts.7.up_proj.weight 960-1151,0-4095 -> 7-7,192-383,0-4095"}));
    EXPECT_THAT(slices(m, tp, "w2_weight"),
                testing::Contains("mlp.experts.127.down_proj.weight 0-4095,960-1151 -> 127-127,0-4095,0-191"));

    const Demand ep = run(m, {.tp = 8, .ep = true}, 5);
    EXPECT_EQ(shape_of(ep, "w13_weight"), Dims({16, 3072, 4096}));
    EXPECT_EQ(shape_of(ep, "w2_weight"), Dims({16, 4096, 1536}));
    EXPECT_EQ(slices(m, ep, "w2_weight").front(), "mlp.experts.80.down_proj.weight 0-4095,0-1535 -> 0-0,0-4095,0-1535");
    EXPECT_EQ(slices(m, ep, "w2_weight").back(),
              "mlp.experts.95.down_proj.weight 0-4095,0-1535 -> 15-15,0-4095,0-1535");

    // Trap 8: without ep, data parallelism cuts experts too. dp_rank 1, tp rank 1 of 4 is expert rank 5 of 8.
    const Demand dp = run(m, {.tp = 4, .dp = 2}, 5);
    EXPECT_EQ(slices(m, dp, "w13_weight"), slices(m, tp, "w13_weight"));
    EXPECT_EQ(shape_of(dp, "qkv_proj.weight"), Dims({2304, 4096}));
    EXPECT_EQ(slices(m, dp, "qkv_proj.weight").front(), "self_attn.q_proj.weight 2048-4095,0-4095 -> 0-2047,0-4095");
}

TEST(WorkedNumbers, Qwen3Dense) {
    const Model m = model("Qwen3-0.6B", 1);
    const Demand demand = run(m, {.tp = 16}, 3);
    EXPECT_EQ(shape_of(demand, "qkv_proj.weight"), Dims({384, 1024}));
    // Heads are 128 wide although H / nq is 64 (trap 2).
    EXPECT_THAT(slices(m, demand, "qkv_proj.weight"),
                ElementsAre("self_attn.q_proj.weight 384-511,0-1023 -> 0-127,0-1023",
                            "self_attn.k_proj.weight 128-255,0-1023 -> 128-255,0-1023",
                            "self_attn.v_proj.weight 128-255,0-1023 -> 256-383,0-1023"));
}

TEST(WorkedNumbers, Qwen25WithBiases) {
    const Model m = model("Qwen2.5-7B", 1);
    const Demand demand = run(m, {.tp = 4}, 3);
    EXPECT_EQ(shape_of(demand, "qkv_proj.weight"), Dims({1152, 3584}));
    EXPECT_THAT(slices(m, demand, "qkv_proj.bias"),
                ElementsAre("self_attn.q_proj.bias 2688-3583 -> 0-895", "self_attn.k_proj.bias 384-511 -> 896-1023",
                            "self_attn.v_proj.bias 384-511 -> 1024-1151"));
    EXPECT_EQ(shape_of(demand, "gate_up_proj.weight"), Dims({9472, 3584}));
    EXPECT_EQ(shape_of(demand, "down_proj.weight"), Dims({3584, 4736}));
}

TEST(WorkedNumbers, DeepSeekV3) {
    const Model m = model("DeepSeek-V3", 4);
    const Demand demand = run(m, {.tp = 8}, 7);
    EXPECT_EQ(shape_of(demand, "0.self_attn.fused_qkv_a_proj.weight"), Dims({2112, 7168}));
    EXPECT_THAT(slices(m, demand, "0.self_attn.q_b_proj.weight"),
                ElementsAre("self_attn.q_b_proj.weight 21504-24575,0-1535 -> 0-3071,0-1535"));
    EXPECT_THAT(slices(m, demand, "0.self_attn.kv_b_proj.weight"),
                ElementsAre("self_attn.kv_b_proj.weight 28672-32767,0-511 -> 0-4095,0-511"));
    EXPECT_THAT(slices(m, demand, "0.self_attn.o_proj.weight"),
                ElementsAre("self_attn.o_proj.weight 0-7167,14336-16383 -> 0-7167,0-2047"));

    const Model published = model("DeepSeek-V3", 1, WeightForm::kPublished);
    const Demand fp8 = run(published, {.tp = 8}, 7);
    EXPECT_EQ(shape_of(fp8, "0.self_attn.fused_qkv_a_proj.weight_scale_inv"), Dims({17, 56}));
    EXPECT_EQ(shape_of(fp8, "0.self_attn.q_b_proj.weight_scale_inv"), Dims({24, 12}));
    EXPECT_EQ(shape_of(fp8, "0.self_attn.kv_b_proj.weight_scale_inv"), Dims({32, 4}));
    EXPECT_EQ(shape_of(fp8, "0.self_attn.o_proj.weight_scale_inv"), Dims({56, 16}));

    // 256 experts and 32 redundant slots over 32 ranks: 9 each.
    const auto experts = [&](int rank) {
        const Demand d = run(m, {.tp = 8, .dp = 4, .ep = true, .redundant = 32}, rank);
        std::vector<int> out;
        for (const CopyRecord& record : d.records) {
            const std::string& name = m.catalogue[record.tensor].name;
            if (name.ends_with(".down_proj.weight") && name.find("3.mlp.experts.") != std::string::npos) {
                out.push_back(std::stoi(name.substr(name.find("experts.") + 8)));
            }
        }
        return out;
    };
    EXPECT_THAT(experts(28), ElementsAre(252, 253, 254, 255, 0, 1, 2, 3, 4));
    EXPECT_THAT(experts(31), ElementsAre(23, 24, 25, 26, 27, 28, 29, 30, 31));
}

TEST(WorkedNumbers, KimiK2) {
    const Model m = model("Kimi-K2", 2);
    const Demand demand = run(m, {.tp = 16, .ep = true}, 15);
    EXPECT_EQ(shape_of(demand, "w13_weight"), Dims({24, 4096, 7168}));
    EXPECT_THAT(slices(m, demand, "w2_weight").front(), HasSubstr("experts.360.down_proj"));
    EXPECT_THAT(slices(m, demand, "w2_weight").back(), HasSubstr("experts.383.down_proj"));
}

TEST(WorkedNumbers, Llama4) {
    const Model m = model("Llama-4-Scout-17B-16E", 1);
    const Demand demand = run(m, {.tp = 8}, 0);
    EXPECT_EQ(shape_of(demand, "layers.0.self_attn.qkv_proj.weight"), Dims({896, 5120}));
    // The first rows come from rows 0, 2, 4, ..., 126, 1, 3, ...: one copy with an inner step of two rows.
    const auto record = std::find_if(demand.records.begin(), demand.records.end(), [&](const CopyRecord& r) {
        return m.catalogue[r.tensor].name.ends_with("layers.0.self_attn.q_proj.weight");
    });
    ASSERT_NE(record, demand.records.end());
    EXPECT_EQ(
        record->copy,
        (StridedCopy{0, 0, 2, {5, 2, 64, 5120}, {128 * 10240, 10240, 20480, 2}, {128 * 10240, 64 * 10240, 10240, 2}}));
}

TEST(WorkedNumbers, GptOssMxfp4) {
    const Model m = model("gpt-oss-120b", 1, WeightForm::kPublished);
    const Demand demand = run(m, {.tp = 8}, 7);
    EXPECT_THAT(slices(m, demand, "w13_weight"),
                ElementsAre("mlp.experts.gate_up_proj_blocks 0-127,5376-5759,0-89,0-15 -> 0-127,0-383,0-1439"));
    // Bytes 1344-1439 of a row are blocks 84-89.
    EXPECT_THAT(slices(m, demand, "w2_weight"),
                ElementsAre("mlp.experts.down_proj_blocks 0-127,0-2879,84-89,0-15 -> 0-127,0-2879,0-95"));
    EXPECT_THAT(slices(m, demand, "w2_weight_scale"),
                ElementsAre("mlp.experts.down_proj_scales 0-127,0-2879,84-89 -> 0-127,0-2879,0-5"));
    EXPECT_EQ(shape_of(demand, "w13_weight"), Dims({128, 768, 1440}));
}

TEST(WorkedNumbers, Glm45Air) {
    const Model m = model("GLM-4.5-Air", 2);
    const Demand demand = run(m, {.tp = 16}, 9);
    EXPECT_EQ(shape_of(demand, "0.self_attn.qkv_proj.weight"), Dims({1024, 4096}));
    EXPECT_THAT(slices(m, demand, "0.self_attn.qkv_proj.weight"),
                ElementsAre("self_attn.q_proj.weight 6912-7679,0-4095 -> 0-767,0-4095",
                            "self_attn.k_proj.weight 512-639,0-4095 -> 768-895,0-4095",
                            "self_attn.v_proj.weight 512-639,0-4095 -> 896-1023,0-4095"));
}

// The largest tp of the loader reference is accepted, twice that is refused.
TEST(WorkedNumbers, ValidTensorParallelSizes) {
    const std::vector<std::pair<const char*, int>> most = {
        {"Qwen3-0.6B", 16},   {"Qwen3-1.7B", 16},          {"Qwen3-8B", 32},        {"Llama-3.1-8B", 32},
        {"Mixtral-8x7B", 32}, {"Qwen3-30B-A3B", 32},       {"GLM-4.5-Air", 32},     {"Kimi-K2", 64},
        {"DeepSeek-V3", 128}, {"Qwen2.5-7B", 4},           {"Qwen3-235B-A22B", 64}, {"gpt-oss-120b", 8},
        {"gpt-oss-20b", 8},   {"Llama-4-Scout-17B-16E", 8}};
    for (const auto& [name, tp] : most) {
        SCOPED_TRACE(name);
        const Model m = model(name, 1);
        run(m, {.tp = tp, .ep = true}, tp - 1);
        EXPECT_FALSE(dry_run(m.catalogue, m.config, {.tp = 2 * tp, .ep = true}, 0).ok());
    }
}

TEST(DryRun, RefusalsNameTheThing) {
    const Model m = llama(64, 4, 4, 16, 64);
    EXPECT_EQ(dry_run(m.catalogue, m.config, {.tp = 2}, 2).status().code(), StatusCode::kInvalidArgument);
    const ModelConfig unknown = ModelConfig::create(m.config.json(), "NoSuchForCausalLM").value();
    const Status status = dry_run(m.catalogue, unknown, {}, 0).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                HasSubstr("architecture NoSuchForCausalLM has no loader; known are DeepseekV3ForCausalLM"));

    // A tensor the loader needs is missing; one has another shape than the config says.
    std::vector<CatalogueTensor> tensors(m.catalogue.tensors().begin(), m.catalogue.tensors().end());
    std::erase_if(tensors, [](const CatalogueTensor& t) { return t.name == "model.norm.weight"; });
    EXPECT_THAT(dry_run(*Catalogue::create(tensors, 1), m.config, {}, 0).status().message(),
                HasSubstr("checkpoint tensor model.norm.weight is missing"));
    tensors.push_back({"model.norm.weight", DType::kBF16, {32}, 0, {}});
    const Status shape = dry_run(*Catalogue::create(tensors, 1), m.config, {}, 0).status();
    EXPECT_EQ(shape.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(shape.message(), HasSubstr("model.norm.weight has shape [32], but the config gives [64]"));

    EXPECT_THAT(refusal(model("Qwen3-30B-A3B", 1), {.tp = 1, .redundant = 2}), HasSubstr("redundant=2 needs ep=on"));
    EXPECT_THAT(refusal(model("gpt-oss-20b", 1), {.tp = 1, .dp = 3, .ep = true}), HasSubstr("drop the remainder"));
    EXPECT_THAT(refusal(model("GLM-4.5-Air", 2), {.tp = 1, .dp = 3}), HasSubstr("expert width of 1408"));
}

// Names that a worker has no use for are never touched: draft layers, rotary buffers, other ranks' experts.
TEST(DryRun, OnlyNeededTensorsAreTouched) {
    const Model m = model("Kimi-K2", 2, WeightForm::kPublished);
    std::vector<Demand> demands;
    std::vector<const Demand*> all;
    for (int rank = 0; rank < 4; ++rank) {
        demands.push_back(run(m, {.tp = 4, .ep = true}, rank));
    }
    for (const Demand& demand : demands) {
        all.push_back(&demand);
    }
    const SourceCoverage coverage = source_coverage(m.catalogue, all);
    std::vector<std::string> unread;
    for (const TensorId id : coverage.unread) {
        unread.push_back(m.catalogue[id].name);
    }
    EXPECT_THAT(unread, ElementsAre("model.layers.0.self_attn.rotary_emb.inv_freq",
                                    "model.layers.1.self_attn.rotary_emb.inv_freq"));
    EXPECT_THAT(coverage.partly_read, IsEmpty());
}

// A user adds a loader, and overrides one, without touching the planner.
TEST(DryRun, LoadersOfOnesOwn) {
    const Model m = llama(64, 4, 4, 16, 64);
    LoaderTable loaders = built_in_loaders();
    loaders["MyForCausalLM"] = [](LoadContext& load) {
        const RecordingParameter fused = load.parameter("norms", {2, load.integer("hidden_size")});
        fused[0].copy_(load.tensor("model.layers.0.input_layernorm.weight"));
        fused[1].copy_(load.tensor("model.layers.0.post_attention_layernorm.weight"));
    };
    const ModelConfig mine = ModelConfig::create(m.config.json(), "MyForCausalLM").value();
    const Demand demand = dry_run(m.catalogue, mine, {}, 0, loaders).value();
    EXPECT_TRUE(prove_coverage(demand).status.ok());
    EXPECT_EQ(demand.records.size(), 2U);
}

TEST(Coverage, HolesOverlapsAndStraysAreNamed) {
    const Catalogue catalogue = *Catalogue::create({{"w", DType::kBF16, {4, 6}, 0, {}}}, 1);
    const auto prove = [&](const std::function<void(Recorder&)>& load) {
        Recorder recorder(catalogue);
        load(recorder);
        return prove_coverage(recorder.demand());
    };
    const DemandCoverage hole = prove([](Recorder& r) {
        r.add_parameter("p", DType::kBF16, {4, 6}).narrow(1, 0, 5).copy_(r.tensor("w").narrow(1, 0, 5));
    });
    EXPECT_EQ(hole.holes, 4);
    EXPECT_EQ(hole.status.message(), "parameter p [4, 6]: 4 elements are written by no tensor, the first at [0, 5]");
    EXPECT_EQ(hole.status.code(), StatusCode::kPlanRefused);

    // Counting would be fooled: one column twice and one not at all.
    const DemandCoverage both = prove([](Recorder& r) {
        const RecordingParameter p = r.add_parameter("p", DType::kBF16, {4, 6});
        p.narrow(1, 0, 3).copy_(r.tensor("w").narrow(1, 0, 3));
        p.narrow(1, 2, 3).copy_(r.tensor("w").narrow(1, 0, 3));
    });
    EXPECT_EQ(both.holes, 4);
    EXPECT_EQ(both.overlaps, 4);
    EXPECT_EQ(both.overlap_gaps.at(0).first, Dims({0, 2}));

    // Interleaved writes cover exactly; a fill counts as written, and is padding.
    const DemandCoverage interleaved = prove([](Recorder& r) {
        const RecordingParameter p = r.add_parameter("p", DType::kBF16, {4, 6});
        p.slice(1, 0, 6, 2).copy_(r.tensor("w").narrow(1, 0, 3));
        p.slice(1, 1, 6, 2).zero_();
    });
    EXPECT_TRUE(interleaved.status.ok()) << interleaved.status.message();
    EXPECT_EQ(interleaved.padding_bytes, 24);

    Demand stray;
    stray.parameters.push_back({"p", DType::kBF16, {4}});
    stray.records.push_back({0, 0, DType::kBF16, DType::kBF16, {0, 4, 2, {3}, {2}, {2}}});
    EXPECT_THAT(prove_coverage(stray).status.message(), HasSubstr("leaves its 8 bytes"));
    stray.records[0].copy.dst_offset = 0;
    stray.records[0].copy.sizes = {4};
    stray.not_from_trainer = {0};
    EXPECT_THAT(prove_coverage(stray).status.message(), HasSubstr("not to come from the trainer"));
}

}  // namespace
}  // namespace sluice::test

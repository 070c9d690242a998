// Traps and numbers of the loader reference (sections 1, 2.7, 4 and 5) that the worked numbers of loader_test.cc and the
// oracle do not show.
#include "planner/trainer_ownership.h"
#include "tests/planner/loader_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace sluice::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Rows of a tensor that each trainer rank owns, as "begin-end" of its boxes.
std::vector<std::string> owned_rows(const Model& m, const std::string& layout, const std::string& tensor) {
    const TrainerLayout parsed = TrainerLayout::parse(layout).value();
    const TensorId id = m.catalogue.find(tensor).value();
    std::vector<std::string> out;
    for (int rank = 0; rank < parsed.world_size(); ++rank) {
        const Ownership owner = trainer_ownership(m.catalogue, m.config, parsed, rank, SourceKind::kResident).value();
        std::string rows;
        for (const OwnedRegion& region : owner.regions) {
            if (region.tensor == id) {
                rows +=
                    (rows.empty() ? "" : " ") + std::to_string(region.begin[0]) + "-" + std::to_string(region.end[0]);
            }
        }
        out.push_back(rows);
    }
    return out;
}

// Experts in the slots of a rank, in order, by the down projections that it reads in layer `layer`.
std::vector<int> experts_of(const Model& m, const WorkerLayout& layout, int rank, int layer) {
    const std::string at = "layers." + std::to_string(layer) + ".mlp.experts.";
    std::vector<int> out;
    for (const CopyRecord& record : run(m, layout, rank).records) {
        const std::string& name = m.catalogue[record.tensor].name;
        const std::size_t found = name.find(at);
        if (found != std::string::npos && name.ends_with("down_proj.weight")) {
            out.push_back(std::stoi(name.substr(found + at.size())));
        }
    }
    return out;
}

// Trap 2: the width of all heads is not the hidden size.
TEST(Traps, HeadWidthIsNotHiddenSize) {
    for (const auto& [name, parameter, shape] : {std::tuple{"Qwen3-0.6B", "self_attn.o_proj.weight", Dims{1024, 2048}},
                                                 {"Qwen3-235B-A22B", "self_attn.o_proj.weight", {4096, 8192}},
                                                 {"gpt-oss-20b", "attn.o_proj.weight", {2880, 4096}},
                                                 {"GLM-4.5-Air", "self_attn.o_proj.weight", {4096, 12288}}}) {
        EXPECT_EQ(shape_of(run(model(name, 1), {}, 0), parameter), shape) << name;
    }
}

// Traps 3 and 4: fused rows are interleaved by rank, and a row-parallel slice is a block of columns.
TEST(Traps, FusedRowsGoByRank) {
    const Model m = model("Qwen3-8B", 1);
    const Demand demand = run(m, {.tp = 4}, 1);
    EXPECT_THAT(slices(m, demand, "gate_up_proj.weight"),
                ElementsAre("mlp.gate_proj.weight 3072-6143,0-4095 -> 0-3071,0-4095",
                            "mlp.up_proj.weight 3072-6143,0-4095 -> 3072-6143,0-4095"));
    EXPECT_THAT(slices(m, demand, "mlp.down_proj.weight"),
                ElementsAre("mlp.down_proj.weight 0-4095,3072-6143 -> 0-4095,0-3071"));
}

// Trap 5: the engine pads a vocabulary to 64, Megatron to 128 * tp.
TEST(Traps, VocabularyIsPaddedDifferentlyOnBothSides) {
    const Model small = llama(64, 4, 4, 16, 1010);
    const Demand second = run(small, {.tp = 2}, 1);
    EXPECT_EQ(shape_of(second, "embed_tokens.weight"), Dims({512, 64}));
    EXPECT_EQ(slices(small, second, "embed_tokens.weight").front(),
              "model.embed_tokens.weight 512-1009,0-63 -> 0-497,0-63");
    const Model m = model("Qwen3-8B", 1);
    EXPECT_THAT(owned_rows(m, "tp=2,format=megatron", "lm_head.weight"), ElementsAre("0-76032", "76032-151936"));
    EXPECT_THAT(owned_rows(m, "tp=4,format=megatron", "lm_head.weight"),
                ElementsAre("0-38016", "38016-76032", "76032-114048", "114048-151936"));
    const std::vector<std::string> eight = owned_rows(m, "tp=8,format=megatron", "lm_head.weight");
    EXPECT_EQ(eight.front(), "0-19072");
    EXPECT_EQ(eight.back(), "133504-151936");
}

// Trap 6: 310 tensors are pulled of the 311 in the file.
TEST(Traps, TiedHeadIsInTheFileOnly) {
    const Model m = model("Qwen3-0.6B", 28);
    std::set<TensorId> read;
    for (const CopyRecord& record : run(m, {}, 0).records) {
        read.insert(record.tensor);
    }
    EXPECT_EQ(m.catalogue.size(), 311U);
    EXPECT_EQ(read.size(), 310U);
    EXPECT_THAT(owned_rows(model("Qwen3-0.6B", 4), "pp=4", "model.embed_tokens.weight"),
                ElementsAre("0-151936", "", "", "0-151936"));
}

// Trap 7: a row-parallel bias is whole on each rank, the experts' down bias lies on the first rank of the width only.
TEST(Traps, Biases) {
    const Model m = model("gpt-oss-20b", 1);
    for (int rank = 0; rank < 2; ++rank) {
        const Demand demand = run(m, {.tp = 2}, rank);
        EXPECT_THAT(slices(m, demand, "o_proj.bias"), ElementsAre("self_attn.o_proj.bias 0-2879 -> 0-2879"));
        EXPECT_EQ(slices(m, demand, "w2_bias").size(), rank == 0 ? 1U : 0U);
    }
    EXPECT_EQ(slices(m, run(m, {.tp = 2, .ep = true}, 1), "w2_bias").size(), 1U) << "whole experts have their bias";
    const Demand glm = run(model("GLM-4.5-Air", 1), {}, 0);
    EXPECT_TRUE(std::none_of(glm.parameters.begin(), glm.parameters.end(),
                             [](const Parameter& p) { return p.name.ends_with("o_proj.bias"); }));
}

// Trap 9: the first ranks have one expert more.
TEST(Traps, UnevenExperts) {
    const Model qwen = model("Qwen3-30B-A3B", 1);
    std::vector<std::size_t> counts;
    for (int rank = 0; rank < 3; ++rank) {
        counts.push_back(experts_of(qwen, {.dp = 3, .ep = true}, rank, 0).size());
    }
    EXPECT_THAT(counts, ElementsAre(43, 43, 42));
    const Model kimi = model("Kimi-K2", 2);
    counts.clear();
    for (int rank = 0; rank < 10; ++rank) {
        counts.push_back(experts_of(kimi, {.dp = 10, .ep = true}, rank, 1).size());
    }
    EXPECT_THAT(counts, ElementsAre(39, 39, 39, 39, 38, 38, 38, 38, 38, 38));
}

// Round robin is for models with several groups of experts; others fall back to neighbours.
TEST(Traps, RoundRobinNeedsExpertGroups) {
    const WorkerLayout layout{.dp = 16, .ep = true, .placement = ExpertPlacement::kRoundRobin};
    EXPECT_THAT(experts_of(model("DeepSeek-V3", 4), layout, 2, 3),
                ElementsAre(2, 18, 34, 50, 66, 82, 98, 114, 130, 146, 162, 178, 194, 210, 226, 242));
    EXPECT_THAT(experts_of(model("Qwen3-30B-A3B", 1), layout, 2, 0), ElementsAre(16, 17, 18, 19, 20, 21, 22, 23));
}

// Trap 14: an expert width of 2048 allows 16 ranks with scales of 128, not 32.
TEST(Traps, Fp8CutsKeepWholeBlocks) {
    const Model m = model("DeepSeek-V3", 4, WeightForm::kPublished);
    const Demand demand = run(m, {.tp = 16}, 15);
    EXPECT_EQ(shape_of(demand, "3.mlp.experts.w13_weight"), Dims({256, 256, 7168}));
    EXPECT_EQ(shape_of(demand, "3.mlp.experts.w13_weight_scale_inv"), Dims({256, 2, 56}));
    EXPECT_EQ(shape_of(demand, "3.mlp.experts.w2_weight_scale_inv"), Dims({256, 56, 1}));
    EXPECT_EQ(slices(m, demand, "0.self_attn.fused_qkv_a_proj.weight_scale_inv").back(),
              "self_attn.kv_a_proj_with_mqa.weight_scale_inv 0-4,0-55 -> 12-16,0-55");
    EXPECT_THAT(refusal(m, {.tp = 32}), HasSubstr("scale block of 128"));
}

// Two parts of a merged weight do not share a scale block, on one rank either; the last one may end inside a block.
TEST(Traps, Fp8MergedPartsAreWholeBlocks) {
    const auto published = [](const char* key, const char* value) {
        ModelConfig config = model("DeepSeek-V3", 4).config;
        EXPECT_TRUE(config.set(key, value).ok());
        return make_model(std::move(config), WeightForm::kPublished);
    };
    EXPECT_THAT(refusal(published("intermediate_size", "18500"), {.tp = 1}),
                AllOf(HasSubstr("0.mlp.gate_up_proj.weight: a part of 18500 rows"), HasSubstr("multiples of 128")));
    EXPECT_THAT(refusal(published("moe_intermediate_size", "2000"), {.dp = 2, .ep = true}),
                HasSubstr("experts.w13_weight: a part of 2000 rows"));
    EXPECT_THAT(refusal(published("q_lora_rank", "1500"), {.tp = 1}),
                HasSubstr("fused_qkv_a_proj.weight: a part of 1500 rows"));
    run(published("intermediate_size", "18560"), {.tp = 1}, 0);
    run(published("kv_lora_rank", "500"), {.tp = 1}, 0);
}

// Trap 15: latent attention has its first projections whole on every rank.
TEST(Traps, FirstProjectionsAreWhole) {
    const Model m = model("DeepSeek-V3", 1);
    const std::vector<std::string> expected = slices(m, run(m, {.tp = 8}, 0), "fused_qkv_a_proj.weight");
    EXPECT_THAT(expected, ElementsAre("self_attn.q_a_proj.weight 0-1535,0-7167 -> 0-1535,0-7167",
                                      "self_attn.kv_a_proj_with_mqa.weight 0-575,0-7167 -> 1536-2111,0-7167"));
    EXPECT_EQ(slices(m, run(m, {.tp = 8}, 7), "fused_qkv_a_proj.weight"), expected);
}

// Trap 17: the layer of the draft model is in the file and nobody reads it.
TEST(Traps, DraftLayersAreIgnored) {
    for (const char* name : {"DeepSeek-V3", "GLM-4.5-Air"}) {
        const Model m = model(name, 4, WeightForm::kPublished);
        const Demand demand = run(m, {}, 0);
        const Demand* all[] = {&demand};
        const std::vector<TensorId> unread = source_coverage(m.catalogue, all).unread;
        const std::string draft = "model.layers.4.";
        EXPECT_FALSE(unread.empty()) << name;
        for (const TensorId id : unread) {
            EXPECT_TRUE(m.catalogue[id].name.starts_with(draft)) << m.catalogue[id].name;
            EXPECT_EQ(m.catalogue[id].group, 0);
        }
    }
}

// Trap 19: qkv is cut by rows of its groups also when there are more ranks than groups.
TEST(Traps, MegatronQkvAtFullSize) {
    const Model m = model("Qwen3-30B-A3B", 1);
    const std::string at = "model.layers.0.self_attn.";
    EXPECT_THAT(owned_rows(m, "tp=2,format=megatron", at + "q_proj.weight"),
                ElementsAre("0-1024 1024-2048", "2048-3072 3072-4096"));
    EXPECT_THAT(owned_rows(m, "tp=2,format=megatron", at + "v_proj.weight"),
                ElementsAre("0-128 128-256", "256-384 384-512"));
    // Five of ten pieces of 128 rows: the second rank of a group has three query heads, the key and the value.
    const std::vector<std::string> q = owned_rows(m, "tp=8,format=megatron", at + "q_proj.weight");
    EXPECT_EQ(q[2], "1024-1664");
    EXPECT_EQ(q[3], "1664-2048");
    EXPECT_THAT(owned_rows(m, "tp=8,format=megatron", at + "k_proj.weight"),
                ElementsAre("", "0-128", "", "128-256", "", "256-384", "", "384-512"));
}

// Section 4.3: chunks of ceil(rows / ranks); the last ranks are short or have nothing.
TEST(Traps, FsdpChunks) {
    const Model m = model("Qwen3-8B", 1);
    const std::vector<std::string> table = owned_rows(m, "fsdp=96", "lm_head.weight");
    EXPECT_EQ(table.front(), "0-1583");
    EXPECT_EQ(table.back(), "150385-151936");
    const std::vector<std::string> norm = owned_rows(m, "fsdp=256", "model.layers.0.self_attn.q_norm.weight");
    EXPECT_EQ(norm[127], "127-128");
    EXPECT_EQ(std::count(norm.begin(), norm.end(), ""), 128);

    std::vector<CatalogueTensor> tensors{{"model.layers.0.mlp.experts.down_proj", DType::kBF16, {128, 4, 2}, 0, {}}};
    const Model fused{m.config, Catalogue::create(tensors, 1).value()};
    const std::vector<std::string> experts = owned_rows(fused, "fsdp=48", tensors[0].name);
    EXPECT_EQ(experts[41], "123-126");
    EXPECT_EQ(experts[42], "126-128");
    EXPECT_EQ(std::count(experts.begin(), experts.end(), ""), 5);
}

// Section 2.7: steps of an expert width of 2880 in blocks of 32.
TEST(Traps, Mxfp4Steps) {
    const Model m = model("gpt-oss-20b", 1, WeightForm::kPublished);
    const auto widths = [&](int ranks) {
        std::vector<std::int64_t> out;
        for (int rank = 0; rank < ranks; ++rank) {
            const WorkerLayout layout{.tp = std::min(ranks, 8), .dp = std::max(1, ranks / 8)};
            // Scales of gate and up rows: 90 bytes a row, two rows a value, 32 experts.
            out.push_back(pulled_bytes(m, run(m, layout, rank), "gate_up_proj_scales") / (90 * 2 * 32));
        }
        return out;
    };
    EXPECT_THAT(widths(2), ElementsAre(1440, 1440));
    EXPECT_THAT(widths(4), ElementsAre(736, 736, 736, 672));
    EXPECT_THAT(widths(8), ElementsAre(384, 384, 384, 384, 384, 384, 384, 192));
    std::vector<std::int64_t> sixteen(15, 192);
    sixteen.push_back(0);
    EXPECT_EQ(widths(16), sixteen);
}

}  // namespace
}  // namespace sluice::test

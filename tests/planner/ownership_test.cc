#include "planner/gather.h"
#include "planner/trainer_ownership.h"
#include "tests/planner/plan_execution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace sluice {
namespace {

using test::SmallModel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Ownership> all_ranks(const SmallModel& model, const std::string& layout,
                                 SourceKind source = SourceKind::kResident) {
    const auto parsed = TrainerLayout::parse(layout);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    std::vector<Ownership> out;
    for (int rank = 0; rank < parsed->world_size(); ++rank) {
        auto owned = trainer_ownership(model.catalogue, model.config, *parsed, rank, source);
        EXPECT_TRUE(owned.ok()) << layout << ": " << owned.status().message();
        if (owned.ok()) {
            out.push_back(std::move(*owned));
        }
    }
    return out;
}

std::vector<const OwnedRegion*> regions_of(const SmallModel& model, const Ownership& owner, const std::string& name) {
    std::vector<const OwnedRegion*> out;
    const auto id = model.catalogue.find(name);
    EXPECT_TRUE(id.has_value()) << name;
    for (const OwnedRegion& region : owner.regions) {
        if (region.tensor == *id) {
            out.push_back(&region);
        }
    }
    return out;
}

// "[begin:end] " per axis of the only region that `owner` has of a tensor.
std::string box(const SmallModel& model, const Ownership& owner, const std::string& name) {
    std::string out;
    for (const OwnedRegion* region : regions_of(model, owner, name)) {
        out += out.empty() ? "" : " + ";
        for (std::size_t d = 0; d < region->begin.size(); ++d) {
            out += (d == 0 ? "" : ",") + std::to_string(region->begin[d]) + ":" + std::to_string(region->end[d]);
        }
    }
    return out;
}

// No byte of the rank's memory belongs to two regions.
void expect_regions_apart(const SmallModel& model, const Ownership& owner) {
    std::vector<char> used(static_cast<std::size_t>(owner.segment_bytes[0]));
    for (const OwnedRegion& region : owner.regions) {
        const CatalogueTensor& tensor = model.catalogue[region.tensor];
        const StridedCopy runs = coalesce(region_copy(region, tensor.shape, size_of(tensor.dtype)));
        for_each_item(runs, [&](std::int64_t /*src*/, std::int64_t at) {
            ASSERT_LE(at + runs.item, owner.segment_bytes[0]) << tensor.name;
            const auto place = used.begin() + at;
            ASSERT_EQ(std::count(place, place + runs.item, 0), runs.item) << tensor.name << " overlaps";
            std::fill(place, place + runs.item, 1);
        });
    }
}

// A model some of whose tensors, by the end of their names, are f32.
SmallModel with_f32(const SmallModel& model, const std::vector<std::string>& endings) {
    std::vector<CatalogueTensor> tensors(model.catalogue.tensors().begin(), model.catalogue.tensors().end());
    for (CatalogueTensor& tensor : tensors) {
        if (std::any_of(endings.begin(), endings.end(),
                        [&](const std::string& ending) { return tensor.name.ends_with(ending); })) {
            tensor.dtype = DType::kF32;
        }
    }
    return test::with_bytes(model.config, Catalogue::create(tensors, model.catalogue.groups() - 2).value());
}

std::vector<std::string> boxes(const SmallModel& model, const std::vector<Ownership>& owners, const std::string& name) {
    std::vector<std::string> out;
    for (const Ownership& owner : owners) {
        out.push_back(box(model, owner, name));
    }
    return out;
}

TEST(TrainerOwnership, CutsAttentionAndDenseLayersOverTp) {
    const SmallModel m = test::small_model("Qwen2.5-7B", {{"num_hidden_layers", "2"},
                                                          {"hidden_size", "64"},
                                                          {"num_attention_heads", "8"},
                                                          {"num_key_value_heads", "2"},
                                                          {"vocab_size", "10"},
                                                          {"intermediate_size", "96"}});
    const auto ranks = all_ranks(m, "tp=4");
    const std::string attention = "model.layers.1.self_attn.";
    EXPECT_THAT(boxes(m, ranks, attention + "q_proj.weight"),
                ElementsAre("0:16,0:64", "16:32,0:64", "32:48,0:64", "48:64,0:64"));
    EXPECT_THAT(boxes(m, ranks, attention + "q_proj.bias"), ElementsAre("0:16", "16:32", "32:48", "48:64"));
    // Two KV heads on four ranks: rank r holds head r div 2.
    EXPECT_THAT(boxes(m, ranks, attention + "k_proj.weight"),
                ElementsAre("0:8,0:64", "0:8,0:64", "8:16,0:64", "8:16,0:64"));
    EXPECT_THAT(boxes(m, ranks, attention + "v_proj.bias"), ElementsAre("0:8", "0:8", "8:16", "8:16"));
    EXPECT_THAT(boxes(m, ranks, attention + "o_proj.weight"),
                ElementsAre("0:64,0:16", "0:64,16:32", "0:64,32:48", "0:64,48:64"));
    EXPECT_EQ(box(m, ranks[3], "model.layers.0.mlp.up_proj.weight"), "72:96,0:64");
    EXPECT_EQ(box(m, ranks[3], "model.layers.0.mlp.down_proj.weight"), "0:64,72:96");
    EXPECT_EQ(box(m, ranks[3], "model.layers.0.input_layernorm.weight"), "0:64");
    // Chunk rule: ceil(10 / 4) = 3.
    EXPECT_THAT(boxes(m, ranks, "model.embed_tokens.weight"),
                ElementsAre("0:3,0:64", "3:6,0:64", "6:9,0:64", "9:10,0:64"));
    EXPECT_EQ(boxes(m, all_ranks(m, "tp=8"), "lm_head.weight").back(), "") << "the last pieces may be empty";
}

TEST(TrainerOwnership, SpreadsExpertsOverEpAndCutsThemOverEtp) {
    const SmallModel m = test::small_model("Qwen3-30B-A3B");
    const auto ranks = all_ranks(m, "tp=2,dp=4,ep=2,etp=2");
    const std::string mlp = "model.layers.2.mlp.";
    EXPECT_THAT(boxes(m, ranks, mlp + "experts.0.gate_proj.weight"),
                ElementsAre("0:16,0:64", "16:32,0:64", "", "", "0:16,0:64", "16:32,0:64", "", ""));
    EXPECT_THAT(boxes(m, ranks, mlp + "experts.7.down_proj.weight"),
                ElementsAre("", "", "0:64,0:16", "0:64,16:32", "", "", "0:64,0:16", "0:64,16:32"));
    EXPECT_EQ(box(m, ranks[5], mlp + "gate.weight"), "0:8,0:64");
}

TEST(TrainerOwnership, UnevenExpertsGoToTheFirstRanks) {
    const SmallModel m = test::small_model("Qwen3-30B-A3B");
    const auto ranks = all_ranks(m, "dp=3,ep=3");
    std::vector<int> counts;
    for (const Ownership& owner : ranks) {
        int count = 0;
        for (int e = 0; e < 8; ++e) {
            count += static_cast<int>(
                regions_of(m, owner, "model.layers.0.mlp.experts." + std::to_string(e) + ".up_proj.weight").size());
        }
        counts.push_back(count);
    }
    EXPECT_THAT(counts, ElementsAre(3, 3, 2));
}

TEST(TrainerOwnership, FusedExpertsOfLlama4AreCutInEachHalf) {
    const SmallModel m = test::small_model("Llama-4-Scout-17B-16E");
    const auto ranks = all_ranks(m, "tp=4,ep=2,etp=2");
    const std::string experts = "language_model.model.layers.0.feed_forward.experts.";
    EXPECT_EQ(box(m, ranks[1], experts + "gate_up_proj"), "0:4,0:64,16:32 + 0:4,0:64,48:64");
    EXPECT_EQ(box(m, ranks[2], experts + "gate_up_proj"), "4:8,0:64,0:16 + 4:8,0:64,32:48");
    EXPECT_EQ(box(m, ranks[3], experts + "down_proj"), "4:8,16:32,0:64");
    // Both halves in one array, the second behind the first in every row.
    const auto halves = regions_of(m, ranks[1], experts + "gate_up_proj");
    EXPECT_EQ(halves[1]->offset - halves[0]->offset, 16 * 2);
    EXPECT_EQ(halves[0]->strides, (Dims{64 * 32 * 2, 32 * 2, 2}));
}

TEST(TrainerOwnership, FusedExpertsOfGptOssKeepGateUpPairs) {
    const SmallModel m = test::small_model("gpt-oss-20b");
    const auto ranks = all_ranks(m, "tp=2,etp=2");
    const std::string layer = "model.layers.0.";
    EXPECT_THAT(boxes(m, ranks, layer + "mlp.experts.gate_up_proj"), ElementsAre("0:8,0:64,0:64", "0:8,0:64,64:128"));
    EXPECT_THAT(boxes(m, ranks, layer + "mlp.experts.gate_up_proj_bias"), ElementsAre("0:8,0:64", "0:8,64:128"));
    EXPECT_THAT(boxes(m, ranks, layer + "mlp.experts.down_proj"), ElementsAre("0:8,0:32,0:64", "0:8,32:64,0:64"));
    EXPECT_THAT(boxes(m, ranks, layer + "mlp.experts.down_proj_bias"), ElementsAre("0:8,0:64", "0:8,0:64"));
    EXPECT_THAT(boxes(m, ranks, layer + "self_attn.sinks"), ElementsAre("0:4", "4:8"));
    EXPECT_THAT(boxes(m, ranks, layer + "self_attn.o_proj.bias"), ElementsAre("0:64", "0:64"));
}

TEST(TrainerOwnership, MlaKeepsItsFirstProjectionsWhole) {
    const SmallModel m = test::small_model("Kimi-K2");
    const auto ranks = all_ranks(m, "tp=4");
    const std::string attention = "model.layers.2.self_attn.";
    EXPECT_EQ(box(m, ranks[3], attention + "q_a_proj.weight"), "0:24,0:64");
    EXPECT_EQ(box(m, ranks[3], attention + "kv_a_proj_with_mqa.weight"), "0:20,0:64");
    EXPECT_EQ(box(m, ranks[3], attention + "q_b_proj.weight"), "72:96,0:24");
    EXPECT_EQ(box(m, ranks[3], attention + "kv_b_proj.weight"), "96:128,0:16");
    EXPECT_EQ(box(m, ranks[3], attention + "o_proj.weight"), "0:64,48:64");
}

TEST(TrainerOwnership, StagesHoldTheirLayersAndTiedTablesLieOnBothEnds) {
    const SmallModel untied = test::small_model("Qwen3-30B-A3B");
    const auto ranks = all_ranks(untied, "pp=2");
    EXPECT_EQ(box(untied, ranks[0], "model.layers.1.input_layernorm.weight"), "0:64");
    EXPECT_EQ(box(untied, ranks[1], "model.layers.1.input_layernorm.weight"), "");
    EXPECT_EQ(box(untied, ranks[1], "model.layers.2.input_layernorm.weight"), "0:64");
    EXPECT_THAT(boxes(untied, ranks, "model.embed_tokens.weight"), ElementsAre("0:250,0:64", ""));
    EXPECT_THAT(boxes(untied, ranks, "lm_head.weight"), ElementsAre("", "0:250,0:64"));
    EXPECT_THAT(boxes(untied, ranks, "model.norm.weight"), ElementsAre("", "0:64"));
    EXPECT_EQ(ranks[1].stage, 1);

    const SmallModel tied = test::small_model("Qwen3-0.6B");
    const auto both = all_ranks(tied, "pp=3");
    EXPECT_THAT(boxes(tied, both, "model.embed_tokens.weight"), ElementsAre("0:250,0:64", "", "0:250,0:64"));
    EXPECT_THAT(boxes(tied, both, "lm_head.weight"), ElementsAre("", "", ""));
}

TEST(TrainerOwnership, FsdpCutsEveryPieceByRowsUnevenly) {
    const SmallModel m =
        test::hand_made({{"model.layers.0.input_layernorm.weight", DType::kBF16, {5}, 0, {}},
                         {"model.layers.0.post_attention_layernorm.weight", DType::kBF16, {1, 17}, 0, {}},
                         {"model.layers.0.scale", DType::kF32, {}, 0, {}}});
    SmallModel with_heads{*ModelConfig::create({{"num_attention_heads", 1}}, "HandMade"), m.catalogue, m.tensors};
    const auto ranks = all_ranks(with_heads, "fsdp=4");
    EXPECT_THAT(boxes(m, ranks, "model.layers.0.input_layernorm.weight"), ElementsAre("0:2", "2:4", "4:5", ""));
    EXPECT_THAT(boxes(m, ranks, "model.layers.0.post_attention_layernorm.weight"), ElementsAre("0:1,0:17", "", "", ""));
    for (const Ownership& owner : ranks) {
        EXPECT_EQ(regions_of(m, owner, "model.layers.0.scale").size(), 1U) << "a scalar cannot be cut";
    }
    const SmallModel qwen = test::small_model("Qwen3-30B-A3B");
    const auto both = all_ranks(qwen, "tp=2,fsdp=3");
    EXPECT_THAT(boxes(qwen, both, "model.layers.0.self_attn.q_proj.weight"),
                ElementsAre("0:11,0:64", "32:43,0:64", "11:22,0:64", "43:54,0:64", "22:32,0:64", "54:64,0:64"));
    EXPECT_EQ(box(qwen, both[3], "model.layers.0.self_attn.o_proj.weight"), "22:44,32:64");
}

// Qwen3-30B's heads (32/4, groups of 8): the worked numbers of linear_qkv, with a narrower hidden size.
TEST(TrainerOwnership, MegatronInterleavesQkvByGroupAndStacksGateAndUp) {
    const SmallModel m = test::small_model("Qwen3-30B-A3B", {{"num_hidden_layers", "1"},
                                                             {"hidden_size", "8"},
                                                             {"vocab_size", "300"},
                                                             {"num_experts", "4"},
                                                             {"moe_intermediate_size", "16"},
                                                             {"intermediate_size", "32"}});
    const auto ranks = all_ranks(m, "tp=2,dp=2,ep=2,etp=2,format=megatron");
    const std::string attention = "model.layers.0.self_attn.";
    EXPECT_EQ(box(m, ranks[1], attention + "q_proj.weight"), "2048:3072,0:8 + 3072:4096,0:8");
    EXPECT_EQ(box(m, ranks[1], attention + "k_proj.weight"), "256:384,0:8 + 384:512,0:8");
    const std::int64_t row = 8 * 2;
    const auto q = regions_of(m, ranks[1], attention + "q_proj.weight");
    const auto k = regions_of(m, ranks[1], attention + "k_proj.weight");
    const auto v = regions_of(m, ranks[1], attention + "v_proj.weight");
    EXPECT_EQ(k[0]->offset - q[0]->offset, 1024 * row);
    EXPECT_EQ(v[0]->offset - q[0]->offset, 1152 * row);
    EXPECT_EQ(q[1]->offset - q[0]->offset, 1280 * row);
    EXPECT_EQ(k[1]->offset - q[0]->offset, 2304 * row);
    EXPECT_EQ(v[1]->offset - q[0]->offset, 2432 * row);

    const std::string expert = "model.layers.0.mlp.experts.2.";
    EXPECT_EQ(box(m, ranks[3], expert + "gate_proj.weight"), "8:16,0:8");
    EXPECT_EQ(box(m, ranks[3], expert + "up_proj.weight"), "8:16,0:8");
    EXPECT_EQ(regions_of(m, ranks[3], expert + "up_proj.weight")[0]->offset -
                  regions_of(m, ranks[3], expert + "gate_proj.weight")[0]->offset,
              8 * row);
    // 300 rows padded to 512, 256 per rank.
    EXPECT_EQ(box(m, ranks[0], "lm_head.weight"), "0:256,0:8");
    EXPECT_EQ(box(m, ranks[1], "lm_head.weight"), "256:300,0:8");
}

TEST(TrainerOwnership, MegatronKeepsPartsOfOtherDtypesApart) {
    for (const char* name : {"Qwen3-0.6B", "Qwen3-30B-A3B"}) {
        const SmallModel plain = test::small_model(name);
        for (const char* ending : {"gate_proj.weight", "up_proj.weight", "q_proj.weight", "k_proj.weight"}) {
            const SmallModel mixed = with_f32(plain, {ending});
            for (const char* layout : {"tp=1,format=megatron", "tp=2,format=megatron"}) {
                SCOPED_TRACE(std::string(name) + " " + layout + " " + ending);
                for (const Ownership& owner : all_ranks(mixed, layout)) {
                    expect_regions_apart(mixed, owner);
                }
            }
        }
    }
}

// Qwen3-235B's heads (64/4) at tp=8: even ranks hold nine query heads, odd ones seven, and k and v.
TEST(TrainerOwnership, MegatronCutsInsideAGroup) {
    const SmallModel m = test::small_model("Qwen3-235B-A22B", {{"num_hidden_layers", "1"},
                                                               {"hidden_size", "8"},
                                                               {"head_dim", "8"},
                                                               {"vocab_size", "256"},
                                                               {"num_experts", "8"},
                                                               {"moe_intermediate_size", "16"}});
    const auto ranks = all_ranks(m, "tp=8,ep=8,format=megatron");
    const std::string attention = "model.layers.0.self_attn.";
    EXPECT_EQ(box(m, ranks[2], attention + "q_proj.weight"), "128:200,0:8");
    EXPECT_EQ(box(m, ranks[2], attention + "k_proj.weight"), "");
    EXPECT_EQ(box(m, ranks[3], attention + "q_proj.weight"), "200:256,0:8");
    EXPECT_EQ(box(m, ranks[3], attention + "k_proj.weight"), "8:16,0:8");
    EXPECT_EQ(box(m, ranks[3], attention + "v_proj.weight"), "8:16,0:8");
}

// Llama-4's fused tensors are input-major: each expert's fc1 [2 * M / etp, H] and fc2 [H, M / etp] are read across.
TEST(TrainerOwnership, MegatronKeepsFusedExpertsApartAndServesThemInPlace) {
    const SmallModel m = test::small_model("Llama-4-Scout-17B-16E");  // H 64, M 32, 8 experts
    const auto ranks = all_ranks(m, "tp=2,dp=2,ep=2,etp=2,format=megatron");
    const std::string experts = "language_model.model.layers.1.feed_forward.experts.";
    EXPECT_EQ(box(m, ranks[3], experts + "gate_up_proj"), "4:8,0:64,16:32 + 4:8,0:64,48:64");
    EXPECT_EQ(box(m, ranks[3], experts + "down_proj"), "4:8,16:32,0:64");
    const std::int64_t row = 64 * 2;
    const auto gate_up = regions_of(m, ranks[3], experts + "gate_up_proj");
    EXPECT_EQ(gate_up[0]->strides, (Dims{32 * row, 2, row}));
    EXPECT_EQ(gate_up[1]->offset - gate_up[0]->offset, 16 * row);
    EXPECT_EQ(regions_of(m, ranks[3], experts + "down_proj")[0]->strides, (Dims{64 * 16 * 2, 2, 16 * 2}));
}

// gpt-oss: gate and up columns take turns in the checkpoint; the array has all gate rows, then all up rows.
TEST(TrainerOwnership, MegatronFoldsInterleavedGateAndUp) {
    const SmallModel m = test::small_model("gpt-oss-20b");  // H 64, M 64, 8 experts
    const auto ranks = all_ranks(m, "tp=2,dp=2,ep=4,format=megatron");
    const std::string experts = "model.layers.0.mlp.experts.";
    const std::int64_t row = 64 * 2;
    const OwnedRegion* gate_up = regions_of(m, ranks[1], experts + "gate_up_proj").front();
    EXPECT_EQ(box(m, ranks[1], experts + "gate_up_proj"), "2:4,0:64,0:128");
    EXPECT_EQ(gate_up->strides, (Dims{128 * row, 2, row}));
    EXPECT_EQ(gate_up->fold, (AxisFold{2, 2, 64 * row}));
    const OwnedRegion* bias = regions_of(m, ranks[1], experts + "gate_up_proj_bias").front();
    EXPECT_EQ(bias->strides, (Dims{128 * 2, 2}));
    EXPECT_EQ(bias->fold, (AxisFold{1, 2, 64 * 2}));
    const auto refused = trainer_ownership(m.catalogue, m.config, *TrainerLayout::parse("tp=2,etp=2,format=megatron"),
                                           0, SourceKind::kResident);
    EXPECT_EQ(refused.status().code(), StatusCode::kPlanRefused);
    EXPECT_THAT(refused.status().message(), HasSubstr("use etp=1"));
}

// gate_up_proj_blocks [E, 2M, H / 32, 16] and its kin are output-major already.
TEST(TrainerOwnership, MegatronKeepsPackedExpertsInTheirOrientation) {
    const std::string experts = "model.layers.0.mlp.experts.";
    const SmallModel shapes = test::hand_made({{experts + "gate_up_proj_blocks", DType::kU8, {4, 8, 2, 16}, 0, {}},
                                               {experts + "down_proj_scales", DType::kU8, {4, 6, 2}, 0, {}}});
    const SmallModel m{
        *ModelConfig::create({{"num_attention_heads", 1}, {"num_local_experts", 4}}, "GptOssForCausalLM"),
        shapes.catalogue, shapes.tensors};
    const auto ranks = all_ranks(m, "dp=2,ep=2,format=megatron");
    const OwnedRegion* blocks = regions_of(m, ranks[1], experts + "gate_up_proj_blocks").front();
    EXPECT_EQ(box(m, ranks[1], experts + "gate_up_proj_blocks"), "2:4,0:8,0:2,0:16");
    EXPECT_EQ(blocks->strides, (Dims{256, 32, 16, 1}));
    EXPECT_EQ(blocks->fold, (AxisFold{1, 2, 4 * 32}));
    EXPECT_EQ(regions_of(m, ranks[1], experts + "down_proj_scales").front()->strides, (Dims{64, 2, 1}));
}

// Transformers 5 holds gate_up [E, 2M, H] and down [E, H, M]: outputs are axis 1 of the one, inputs axis 2 of the other.
TEST(TrainerOwnership, FusedExpertsOfTransformersAreOutputMajor) {
    const std::string experts = "model.layers.0.mlp.experts.";
    const SmallModel shapes = test::hand_made({{experts + "gate_up_proj", DType::kBF16, {4, 8, 16}, 0, {}},
                                               {experts + "down_proj", DType::kBF16, {4, 16, 4}, 0, {}}});
    const SmallModel m{*ModelConfig::create({{"num_attention_heads", 1}, {"num_experts", 4}, {"hidden_size", 16}},
                                            "Qwen3MoeForCausalLM"),
                       shapes.catalogue, shapes.tensors};
    const auto hf = all_ranks(m, "tp=2,etp=2");
    EXPECT_EQ(box(m, hf[1], experts + "gate_up_proj"), "0:4,2:4,0:16 + 0:4,6:8,0:16");
    EXPECT_EQ(box(m, hf[1], experts + "down_proj"), "0:4,0:16,2:4");
    const auto megatron = all_ranks(m, "tp=2,etp=2,format=megatron");
    const auto gate_up = regions_of(m, megatron[1], experts + "gate_up_proj");
    EXPECT_EQ(gate_up[0]->strides, (Dims{4 * 32, 32, 2}));
    EXPECT_EQ(gate_up[1]->offset - gate_up[0]->offset, 2 * 32);
    EXPECT_EQ(regions_of(m, megatron[1], experts + "down_proj")[0]->strides, (Dims{16 * 4, 4, 2}));
}

// Checkpoints have more beside a weight than loaders read: scales of a KV cache, of activations.
TEST(TrainerOwnership, WhatIsBesideAWeightIsWhole) {
    const SmallModel plain = test::small_model("Qwen3-30B-A3B");
    std::vector<CatalogueTensor> tensors(plain.catalogue.tensors().begin(), plain.catalogue.tensors().end());
    const std::string layer = "model.layers.0.";
    const std::vector<std::string> names{layer + "self_attn.k_proj.k_scale", layer + "self_attn.v_proj.v_scale",
                                         layer + "self_attn.o_proj.input_scale",
                                         layer + "mlp.experts.0.down_proj.input_scale"};
    for (const Dims& shape : {Dims{}, Dims{1}}) {
        for (const std::string& name : names) {
            tensors.resize(plain.catalogue.size());
            tensors.push_back({name, DType::kF32, shape, 0, {}});
            const SmallModel m =
                test::with_bytes(plain.config, Catalogue::create(tensors, plain.catalogue.groups() - 2).value());
            for (const char* layout : {"tp=2", "tp=2,etp=2,format=megatron", "fsdp=2"}) {
                const auto ranks = all_ranks(m, layout);
                ASSERT_FALSE(ranks.empty()) << name << " " << layout;
                const auto regions = regions_of(m, ranks[0], name);
                ASSERT_EQ(regions.size(), 1U) << name << " " << layout;
                EXPECT_EQ(regions[0]->end, shape) << name << " " << layout;
            }
        }
    }
}

TEST(TrainerOwnership, RefusesWhatCannotBeCut) {
    const SmallModel m = test::small_model("Qwen3-30B-A3B");
    const auto refusal = [&](const char* layout) {
        return trainer_ownership(m.catalogue, m.config, *TrainerLayout::parse(layout), 0, SourceKind::kResident)
            .status();
    };
    const Status heads = refusal("tp=3");
    EXPECT_EQ(heads.code(), StatusCode::kPlanRefused);
    EXPECT_THAT(heads.message(), HasSubstr("tp=3"));
    EXPECT_THAT(heads.message(), HasSubstr("_proj.weight"));
    const SmallModel three = test::small_model("Qwen3-8B", {{"num_hidden_layers", "1"},
                                                            {"hidden_size", "64"},
                                                            {"intermediate_size", "96"},
                                                            {"vocab_size", "256"},
                                                            {"num_attention_heads", "12"},
                                                            {"num_key_value_heads", "3"}});
    const Status kv =
        trainer_ownership(three.catalogue, three.config, *TrainerLayout::parse("tp=4"), 0, SourceKind::kResident)
            .status();
    EXPECT_EQ(kv.code(), StatusCode::kPlanRefused);
    EXPECT_EQ(refusal("pp=4").code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refusal("dp=16,ep=16").message(), HasSubstr("ep=16"));
}

// Whatever the layout: every element is owned, by equally many ranks as the layout repeats it; arrays do not overlap in memory.
TEST(TrainerOwnership, EveryElementIsOwnedAndArraysAreApart) {
    for (const auto& [name, model] : test::small_models()) {
        std::vector<std::string> layouts{"tp=1", "tp=8", "tp=2,pp=2,dp=2", "fsdp=3", "fsdp=5,tp=2,dp=2"};
        if (model.catalogue.find("model.layers.1.mlp.up_proj.weight").has_value()) {
            layouts.emplace_back("tp=4,pp=2,dp=2,format=megatron");
        } else {
            layouts.insert(layouts.end(), {"tp=8,ep=4", "tp=4,pp=2,ep=2,etp=2", "dp=4,ep=2,etp=2"});
        }
        const bool moe = layouts.size() > 6;
        if (moe && name != "gpt-oss-20b") {
            layouts.emplace_back("tp=4,dp=2,ep=4,etp=2,format=megatron");
        }
        if (moe) {
            layouts.emplace_back("tp=2,pp=2,dp=2,ep=4,format=megatron");
        }
        for (const std::string& layout : layouts) {
            for (const SourceKind source : {SourceKind::kResident, SourceKind::kGathered}) {
                const auto ranks = all_ranks(model, layout, source);
                std::map<TensorId, std::vector<int>> owners;
                for (const Ownership& owner : ranks) {
                    std::map<std::pair<SegmentId, GroupId>, std::vector<char>> used;
                    for (const OwnedRegion& region : owner.regions) {
                        const CatalogueTensor& tensor = model.catalogue[region.tensor];
                        auto& count = owners[region.tensor];
                        count.resize(static_cast<std::size_t>(tensor.elements()));
                        const bool gathered = region.segment == kGatheredSegment;
                        auto& memory = used[{region.segment, gathered ? tensor.group : 0}];
                        memory.resize(static_cast<std::size_t>(
                            gathered ? owner.gathered_bytes[static_cast<std::size_t>(tensor.group)]
                                     : owner.segment_bytes[0]));
                        const std::int64_t item = size_of(tensor.dtype);
                        const StridedCopy runs = coalesce(region_copy(region, tensor.shape, item));
                        for_each_item(runs, [&](std::int64_t src, std::int64_t at) {
                            const auto first = count.begin() + src / item;
                            std::for_each(first, first + runs.item / item, [](int& n) { ++n; });
                            ASSERT_LE(at + runs.item, static_cast<std::int64_t>(memory.size()));
                            const auto place = memory.begin() + at;
                            ASSERT_EQ(std::count(place, place + runs.item, 0), runs.item)
                                << name << " " << layout << ": overlap";
                            std::fill(place, place + runs.item, 1);
                        });
                    }
                }
                for (TensorId t = 0; t < static_cast<TensorId>(model.catalogue.size()); ++t) {
                    if (model.catalogue[t].tied_to.empty()) {
                        const auto& count = owners[t];
                        ASSERT_FALSE(count.empty()) << model.catalogue[t].name << " " << layout;
                        const auto [least, most] = std::minmax_element(count.begin(), count.end());
                        EXPECT_GE(*least, 1) << model.catalogue[t].name << " " << layout;
                        EXPECT_EQ(*least, *most) << model.catalogue[t].name << " " << layout;
                    }
                }
            }
        }
    }
}

TEST(TrainerOwnership, GatheredOffersCutTensorsWholeAndTheRestInPlace) {
    const SmallModel m = test::small_model("Qwen3-30B-A3B");
    const auto ranks = all_ranks(m, "tp=2,dp=2,ep=4", SourceKind::kGathered);
    const OwnedRegion* q = regions_of(m, ranks[1], "model.layers.0.self_attn.q_proj.weight").front();
    EXPECT_EQ(q->segment, kGatheredSegment);
    EXPECT_EQ(q->end, (Dims{64, 64}));
    EXPECT_EQ(regions_of(m, ranks[1], "model.layers.0.input_layernorm.weight").front()->segment, 0);
    EXPECT_EQ(regions_of(m, ranks[1], "model.layers.0.mlp.experts.2.up_proj.weight").front()->segment, 0);
    EXPECT_GT(ranks[1].gathered_bytes[1], 0);
    EXPECT_EQ(all_ranks(m, "dp=2,ep=2", SourceKind::kGathered)[0].gathered_bytes.size(), 0U) << "nothing is cut";
}

}  // namespace
}  // namespace sluice

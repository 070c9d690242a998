// Public reports of dtypes and shapes (D01 to D11), each with its right outcome.
#include "planner/loaders/load_context.h"
#include "planner/loaders/rules.h"
#include "tests/planner/hand_made_pull.h"
#include "tests/planner/loader_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace sluice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// An island of f32 stays f32, and into a bf16 parameter it needs a declaration.
TEST(Cases, D01_Fp32RouterBias) {
    const Model m = model("GLM-4.5-Air", 2);
    const Demand demand = run(m, {.tp = 2}, 0);
    for (const CopyRecord& record : demand.records) {
        const std::string& name = m.catalogue[record.tensor].name;
        const bool bias = name.ends_with("e_score_correction_bias");
        const bool router = name.ends_with("mlp.gate.weight");
        EXPECT_EQ(record.parameter_dtype, bias || router ? DType::kF32 : DType::kBF16) << name;
        EXPECT_EQ(record.converts(), router) << name;
    }
    const Loader undeclared = [](LoadContext& load) {
        load.parameter("bias", {128}, DType::kBF16)
            .copy_(load.tensor("model.layers.1.mlp.gate.e_score_correction_bias"));
    };
    const Result<Demand> refused = dry_run(m.catalogue, m.config, {}, 0, undeclared);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.status().message(), HasSubstr("dtype f32 differs from the destination's bf16"));
}

// A router's correction bias in f32: all 238 values arrive as they are, and narrowing is a declared conversion.
TEST(Cases, D01_Fp32BiasIsBitExact) {
    SmallModel model = hand_made({{"bias", DType::kF32, {238}, 0, {}}});
    std::set<float> distinct;
    for (std::size_t i = 0; i < 238; ++i) {
        float value = 6.817F + static_cast<float>(i) * (7.063F - 6.817F) / 237.0F;
        unsigned char* bytes = &model.tensors[0][4 * i];
        std::memcpy(bytes, &value, 4);
        std::replace(bytes, bytes + 4, static_cast<unsigned char>(0xCD), static_cast<unsigned char>(0xCC));  // poison
        std::memcpy(&value, bytes, 4);
        distinct.insert(value);
    }
    ASSERT_EQ(distinct.size(), 238U);
    const std::vector<Ownership> owners{owner_of_whole(model.catalogue, {"bias"})};
    const Demand same = record(
        model.catalogue, [](Recorder& r) { r.add_parameter("bias", DType::kF32, {238}).copy_(r.tensor("bias")); });
    EXPECT_EQ(pull(model, owners, same)[0], model.tensors[0]);
    const Demand narrowed = record(model.catalogue, [](Recorder& r) {
        r.add_parameter("bias", DType::kBF16, {238}).copy_(r.tensor("bias").to(DType::kBF16));
    });
    const Plan plan = plan_of(model, owners, narrowed).value();
    EXPECT_TRUE(plan.routes[0].chunks[0].pieces[0].converts());
    EXPECT_EQ(bytes_by_owner(plan.routes[0]), (std::map<int, std::int64_t>{{0, 2 * 238}}));
    std::set<std::pair<unsigned char, unsigned char>> values;
    const Bytes rounded = pull(model, owners, narrowed)[0];
    for (std::size_t i = 0; i < 238; ++i) {
        values.insert({rounded[2 * i], rounded[2 * i + 1]});
    }
    EXPECT_EQ(values.size(), 9U) << "this is why the engine keeps them in f32";
}

// Master weights in f32 into a bf16 engine: refused, or converted where they are and half the bytes sent.
TEST(Cases, D02_Fp32MasterWeights) {
    const SmallModel model = hand_made({{"w", DType::kF32, {1024, 1024}, 0, {}}});
    const Loader undeclared = [](LoadContext& load) {
        load.parameter("w", {1024, 1024}, DType::kBF16).copy_(load.tensor("w"));
    };
    const Status refused = dry_run(model.catalogue, model.config, {}, 0, undeclared).status();
    EXPECT_EQ(refused.code(), StatusCode::kPlanRefused);
    EXPECT_THAT(refused.message(), HasSubstr("dtype f32 differs from the destination's bf16"));
    const Demand declared = record(model.catalogue, [](Recorder& r) {
        r.add_parameter("w", DType::kBF16, {1024, 1024}).copy_(r.tensor("w").to(DType::kBF16));
    });
    const Plan plan = plan_of(model, {owner_of_whole(model.catalogue, {"w"})}, declared).value();
    EXPECT_EQ(bytes_by_owner(plan.routes[0]), (std::map<int, std::int64_t>{{0, 2097152}}));
    for (const Chunk& chunk : plan.routes[0].chunks) {
        EXPECT_EQ(chunk.path, Path::kPacked) << "the owner converts";
    }
}

// Owners may keep a tensor strided, transposed or as columns of a wider array; nothing beside it is read.
TEST(Cases, D04_NonContiguousSources) {
    const SmallModel model = hand_made({{"columns", DType::kBF16, {4, 3}, 0, {}},
                                        {"step", DType::kBF16, {4}, 0, {}},
                                        {"turned", DType::kBF16, {3, 5}, 0, {}}});
    Ownership owner;
    owner.regions = {{0, {0, 0}, {4, 3}, 0, 4, {16, 2}},   // columns 2-4 of [4, 8]
                     {1, {0}, {4}, 0, 64, {4}},            // every second element of [8]
                     {2, {0, 0}, {3, 5}, 0, 80, {2, 6}}};  // column-major
    owner.segment_bytes = {110};
    const Demand demand = record(model.catalogue, [](Recorder& r) {
        r.add_parameter("columns", DType::kBF16, {4, 3}).copy_(r.tensor("columns"));
        r.add_parameter("step", DType::kBF16, {4}).copy_(r.tensor("step"));
        r.add_parameter("turned", DType::kBF16, {3, 5}).copy_(r.tensor("turned"));
    });
    EXPECT_EQ(pull(model, {owner}, demand), model.tensors);
}

// Bytes that are read as wider elements and converted must lie side by side at their owner.
TEST(Cases, D04_WidenedViewsOfNonContiguousSources) {
    const SmallModel model = hand_made({{"w", DType::kU8, {4, 8}, 0, {}}});
    const Demand demand = record(model.catalogue, [](Recorder& r) {
        r.add_parameter("w", DType::kBF16, {4, 2}).copy_(r.tensor("w").view(DType::kF32).to(DType::kBF16));
    });
    Ownership turned;
    turned.regions = {{0, {0, 0}, {4, 8}, 0, 0, {1, 4}}};
    turned.segment_bytes = {32};
    const Status refused = plan_of(model, {turned}, demand).status();
    EXPECT_EQ(refused.code(), StatusCode::kPlanRefused);
    EXPECT_THAT(refused.message(), HasSubstr("tensor w: a conversion reads 4 elements as one"));
    EXPECT_THAT(refused.message(), HasSubstr("4 bytes apart"));

    Ownership apart;  // rows of a wider array
    apart.regions = {{0, {0, 0}, {4, 8}, 0, 0, {12, 1}}};
    apart.segment_bytes = {48};
    EXPECT_EQ(pull(model, {apart}, demand), pull(model, {owner_of_whole(model.catalogue, {"w"})}, demand));
}

// A tensor without dimensions goes into one element, or into a slot of a vector.
TEST(Cases, D08_Scalars) {
    const SmallModel model = hand_made({{"one", DType::kF32, {1}, 0, {}}, {"scale", DType::kF32, {}, 0, {}}});
    const Loader loader = [](LoadContext& load) {
        load.parameter("whole", {}, DType::kF32).copy_(load.tensor("scale"));
        rules::copy(load.parameter("element", {1}, DType::kF32), load.tensor("scale"));
        const RecordingParameter slots = load.parameter("slots", {3}, DType::kF32);
        slots.narrow(0, 0, 1).copy_(load.tensor("one"));
        slots.select(0, 1).copy_(load.tensor("scale"));
        slots.narrow(0, 2, 1).zero_();
    };
    const Demand demand = dry_run(model.catalogue, model.config, {}, 0, loader).value();
    EXPECT_TRUE(prove_coverage(demand).status.ok());
    const std::vector<Ownership> owners{owner_of_whole(model.catalogue, {"one", "scale"})};
    EXPECT_EQ(bytes_by_owner(plan_of(model, owners, demand).value().routes[0]), (std::map<int, std::int64_t>{{0, 16}}));
    const std::vector<Bytes> got = pull(model, owners, demand);
    EXPECT_EQ(got[0], model.tensors[1]);
    EXPECT_EQ(got[1], model.tensors[1]);
    EXPECT_TRUE(std::equal(model.tensors[0].begin(), model.tensors[0].end(), got[2].begin()));
    EXPECT_TRUE(std::equal(model.tensors[1].begin(), model.tensors[1].end(), got[2].begin() + 4));
}

// Tensors without elements are listed, owned by nobody and pulled by nobody.
TEST(Cases, D09_EmptyTensors) {
    const SmallModel model = hand_made({{"a", DType::kBF16, {0}, 0, {}},
                                        {"b", DType::kBF16, {0}, 0, {}},
                                        {"c", DType::kBF16, {2, 0}, 0, {}},
                                        {"model.layers.0.w", DType::kBF16, {4}, 0, {}}});
    EXPECT_EQ(model.catalogue.size(), 4U);
    const Demand demand = record(model.catalogue, [](Recorder& r) {
        r.add_parameter("a", DType::kBF16, {0}).copy_(r.tensor("a"));
        r.add_parameter("b", DType::kBF16, {0}).copy_(r.tensor("b"));
        r.add_parameter("c", DType::kBF16, {2, 0}).copy_(r.tensor("c"));
        r.add_parameter("w", DType::kBF16, {4}).copy_(r.tensor("model.layers.0.w"));
    });
    EXPECT_TRUE(prove_coverage(demand).status.ok());
    for (const bool declared : {true, false}) {
        const std::vector<Ownership> owners{
            owner_of_whole(model.catalogue, declared ? std::vector<std::string>{"a", "b", "c", "model.layers.0.w"}
                                                     : std::vector<std::string>{"model.layers.0.w"})};
        const Plan plan = plan_of(model, owners, demand).value();
        ASSERT_EQ(plan.routes[0].chunks.size(), 1U);
        EXPECT_EQ(plan.routes[0].chunks[0].wire_bytes, 8);
        EXPECT_THAT(owner_route(plan, 0).group_order, ElementsAre(1)) << "the worker has no share of group 0";
        EXPECT_EQ(pull(model, owners, demand)[3], model.tensors[3]);
    }
}

// Equal byte counts are not equal shapes.
TEST(Cases, D11_ShapesOfEqualSize) {
    const SmallModel model = hand_made({{"w", DType::kBF16, {8, 2}, 0, {}}});
    const Loader loader = [](LoadContext& load) { load.parameter("w", {2, 8}, DType::kBF16).copy_(load.tensor("w")); };
    const Status refused = dry_run(model.catalogue, model.config, {}, 0, loader).status();
    EXPECT_EQ(refused.code(), StatusCode::kPlanRefused);
    EXPECT_THAT(refused.message(), HasSubstr("shape [8, 2] differs from the destination's [2, 8]"));
}

}  // namespace
}  // namespace sluice::test

// Public reports of plans and groups (L15 to L24), each with its right outcome.
#include "planner/loaders/load_context.h"
#include "planner/loaders/rules.h"
#include "planner/plan_summary.h"
#include "planner/trainer_ownership.h"
#include "tests/planner/hand_made_pull.h"
#include "tests/planner/loader_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace sluice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A row-parallel slice is one record and is packed: as many reads as its twin of whole rows, not 4096.
TEST(Cases, L15_StridedSlicesArePacked) {
    const Catalogue catalogue = *Catalogue::create({{"w", DType::kBF16, {4096, 4096}, 0, {}}}, 1);
    const auto chunks = [&](const std::function<void(Recorder&)>& load) {
        const Demand demand = record(catalogue, load);
        EXPECT_EQ(demand.records.size(), 1U);
        const std::vector<Ownership> owners{owner_of_whole(catalogue, {"w"})};
        const DemandRequest request{&demand, {0}, {}, -1};
        return route(catalogue, owners, std::span(&request, 1), {}).value().routes[0].chunks;
    };
    const std::vector<Chunk> columns = chunks([](Recorder& r) {
        r.add_parameter("p", DType::kBF16, {4096, 1024}).copy_(r.tensor("w").narrow(1, 1024, 1024));
    });
    const std::vector<Chunk> rows = chunks([](Recorder& r) {
        r.add_parameter("p", DType::kBF16, {1024, 4096}).copy_(r.tensor("w").narrow(0, 1024, 1024));
    });
    EXPECT_EQ(columns.size(), 2U);
    EXPECT_EQ(rows.size(), columns.size());
    for (const Chunk& chunk : columns) {
        EXPECT_EQ(chunk.path, Path::kPacked);
    }
    const std::vector<Chunk> column =
        chunks([](Recorder& r) { r.add_parameter("p", DType::kBF16, {4096, 1}).copy_(r.tensor("w").narrow(1, 7, 1)); });
    ASSERT_EQ(column.size(), 1U);
    EXPECT_EQ(column[0].path, Path::kPacked);
    EXPECT_EQ(column[0].wire_bytes, 8192);
}

// What can be written as views is recorded and transfers; what needs data is refused by tensor and operation.
TEST(Cases, L16_OperationsThatNeedData) {
    const SmallModel model = hand_made({{"w", DType::kBF16, {4, 6}, 0, {}}});
    const std::vector<std::pair<const char*, std::function<void(const RecordingTensor&)>>> refused = {
        {"add()", [](const RecordingTensor& t) { (void)(t + 1); }},
        {"item()", [](const RecordingTensor& t) { (void)t.item(); }},
        {"masked_select()", [](const RecordingTensor& t) { (void)t.masked_select(t); }},
        {"index(tensor)", [](const RecordingTensor& t) { (void)t.index(t); }}};
    for (const auto& [name, operation] : refused) {
        const Loader loader = [&, op = operation](LoadContext& load) { op(load.tensor("w").narrow(0, 0, 2)); };
        const Status status = dry_run(model.catalogue, model.config, {}, 0, loader).status();
        EXPECT_EQ(status.code(), StatusCode::kPlanRefused);
        EXPECT_THAT(status.message(), HasSubstr("tensor w [4, 6] bf16: narrow(0, 0, 2): "));
        EXPECT_THAT(status.message(), HasSubstr(name));
    }
    const Demand demand = record(model.catalogue, [](Recorder& r) {
        const RecordingTensor w = r.tensor("w");
        r.add_parameter("clone", DType::kBF16, {2})
            .copy_(w.clone().contiguous().chunk(2, 0)[1].flatten().narrow(0, 5, 2));
        r.add_parameter("split", DType::kBF16, {1, 4}).copy_(w.split(4, 1)[0].select(0, 2).unsqueeze(0));
        r.add_parameter("expand", DType::kBF16, {3, 2})
            .copy_(w.select(0, 1).narrow(0, 0, 2).unsqueeze(0).expand({3, 2}));
    });
    EXPECT_THAT(pull(model, {owner_of_whole(model.catalogue, {"w"})}, demand),
                ElementsAre(picked(model, "w", {17, 18}), picked(model, "w", {12, 13, 14, 15}),
                            picked(model, "w", {6, 7, 6, 7, 6, 7})));
}

// Rotary halves before the cut: a shard of the permuted tensor is no shard of the checkpoint's.
TEST(Cases, L18_PermutationBeforeTheShard) {
    const SmallModel model = hand_made({{"q", DType::kBF16, {16, 4}, 0, {}}});  // two heads of eight rows
    Ownership first = owner_of_whole(model.catalogue, {"q"});
    Ownership second = first;
    first.regions[0].end[0] = 6;  // a border inside a head
    second.regions[0].begin[0] = 6;
    for (std::int64_t rank = 0; rank < 2; ++rank) {
        const Demand demand = record(model.catalogue, [&](Recorder& r) {
            r.add_parameter("p", DType::kBF16, {8, 4})
                .copy_(r.tensor("q").view({2, 4, 2, 4}).transpose(1, 2).reshape({16, 4}).narrow(0, 8 * rank, 8));
        });
        std::vector<std::int64_t> elements;
        for (std::int64_t row = 0; row < 8; ++row) {
            for (std::int64_t column = 0; column < 4; ++column) {
                elements.push_back((8 * rank + row % 4 * 2 + row / 4) * 4 + column);
            }
        }
        EXPECT_EQ(pull(model, {first, second}, demand)[0], picked(model, "q", elements));
    }
}

// The bytes do not depend on how they are cut.
TEST(Cases, L20_AnyChunkSize) {
    const SmallModel model = small_model("Qwen3-30B-A3B");
    const TrainerLayout trainer = TrainerLayout::parse("tp=2,pp=2,dp=2,ep=4").value();
    std::vector<Ownership> owners;
    for (int rank = 0; rank < trainer.world_size(); ++rank) {
        owners.push_back(
            trainer_ownership(model.catalogue, model.config, trainer, rank, SourceKind::kResident).value());
    }
    const Demand demand = dry_run(model.catalogue, model.config, {.tp = 2}, 1).value();
    const std::vector<Bytes> expected = expected_parameters(model, demand);
    for (const std::int64_t chunk_bytes :
         {std::int64_t{1} << 10, std::int64_t{64} << 10, std::int64_t{1} << 20, std::int64_t{1} << 50}) {
        EXPECT_EQ(pull(model, owners, demand, chunk_bytes), expected) << chunk_bytes;
    }
}

// Groups go by the number of the layer, the same for everybody; one that two ranks hold is published by both.
TEST(Cases, L21_GroupsByLayerNumber) {
    const char* names[] = {"model.layers.1.a", "model.layers.10.a", "model.layers.10.b",         "model.layers.2.a",
                           "mtp.layers.0.a",   "visual.blocks.0.a", "model.embed_tokens.weight", "lm_head.weight"};
    std::vector<CatalogueTensor> tensors;
    for (const char* name : names) {
        tensors.push_back({name, DType::kBF16, {4, 4}, 0, {}});
    }
    const Catalogue catalogue = Catalogue::create(tensors, 11).value();
    const auto group = [&](const char* name) { return catalogue[catalogue.find(name).value()].group; };
    EXPECT_EQ(group("model.layers.1.a"), 2);
    EXPECT_EQ(group("model.layers.2.a"), 3);
    EXPECT_EQ(group("model.layers.10.a"), 11);
    EXPECT_EQ(group("lm_head.weight"), 12);
    for (const char* name : {"mtp.layers.0.a", "visual.blocks.0.a", "model.embed_tokens.weight"}) {
        EXPECT_EQ(group(name), 0) << name;
    }
    const std::vector<Ownership> owners{
        owner_of_whole(catalogue, {"model.layers.1.a", "model.layers.10.a", "mtp.layers.0.a", "visual.blocks.0.a"}),
        owner_of_whole(catalogue,
                       {"model.layers.10.b", "model.layers.2.a", "model.embed_tokens.weight", "lm_head.weight"})};
    const Demand demand = record(catalogue, [&](Recorder& r) {
        for (const char* name : names) {
            r.add_parameter(name, DType::kBF16, {4, 4}).copy_(r.tensor(name));
        }
    });
    const DemandRequest request{&demand, {0}, {}, -1};
    const Plan plan = route(catalogue, owners, std::span(&request, 1), {}).value();
    std::vector<GroupId> read;
    for (const Chunk& chunk : plan.routes[0].chunks) {
        if (read.empty() || read.back() != chunk.group) {
            read.push_back(chunk.group);
        }
    }
    EXPECT_THAT(read, ElementsAre(0, 2, 3, 11, 12));
    EXPECT_THAT(owner_route(plan, 0).group_order, ElementsAre(0, 2, 11));
    EXPECT_THAT(owner_route(plan, 1).group_order, ElementsAre(0, 3, 11, 12));
}

// Buffers that are not weights are declared and never written.
TEST(Cases, L22_BuffersAreNotWritten) {
    const Model m = llama(64, 4, 4, 16, 64);
    const Loader with_buffers = [](LoadContext& load) {
        rules::replicated(load, "model.norm.weight", {64});
        load.buffer("expert_map", {8}, DType::kI64);
        load.buffer("mask", {4, 4}, DType::kBool);
        load.buffer("inv_freq", {8}, DType::kF32);
    };
    const Demand demand = dry_run(m.catalogue, m.config, {}, 0, with_buffers).value();
    EXPECT_THAT(demand.not_from_trainer, ElementsAre(1, 2, 3));
    EXPECT_TRUE(prove_coverage(demand).status.ok());
    EXPECT_EQ(demand.records.size(), 1U);
}

// A rank without an element of a tensor changes no size: they all come from the full shape.
TEST(Cases, L24_SizesAreGlobal) {
    const SmallModel model = hand_made({{"w", DType::kBF16, {4096, 64}, 0, {}}});
    Ownership none;
    none.segment_bytes = {0};
    const std::vector<Ownership> owners{owner_of_whole(model.catalogue, {"w"}), none};
    const Demand demand = record(
        model.catalogue, [](Recorder& r) { r.add_parameter("w", DType::kBF16, {4096, 64}).copy_(r.tensor("w")); });
    const Plan plan = plan_of(model, owners, demand, 64 << 10).value();
    EXPECT_EQ(plan.routes[0].chunks.size(), 8U);
    const PlanSummary summary = summarize(model.catalogue, owners, plan, {});
    EXPECT_EQ(summary.model_bytes, 4096 * 64 * 2);
    EXPECT_EQ(summary.trainer_ranks[0].owned_bytes, 4096 * 64 * 2);
    EXPECT_EQ(summary.trainer_ranks[1].owned_bytes, 0);
}

}  // namespace
}  // namespace sluice::test

#include "planner/gather.h"

#include "planner/trainer_ownership.h"
#include "tests/planner/plan_execution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace sluice {
namespace {

using test::Bytes;
using test::OwnerMemory;
using test::SmallModel;
using ::testing::ElementsAre;

// Runs the gather of every rank on shards with real bytes, and compares the buffers with what trainer_ownership promises to serve.
void expect_gathers(const SmallModel& model, const std::string& text, const std::string& what) {
    SCOPED_TRACE(what + ": " + text);
    const TrainerLayout layout = *TrainerLayout::parse(text);
    for (const std::int64_t chunk_bytes : {std::int64_t{1024}, std::int64_t{4} << 20}) {
        const auto gather = gather_plan(model.catalogue, model.config, layout, {chunk_bytes});
        ASSERT_TRUE(gather.ok()) << gather.status().message();
        std::vector<OwnerMemory> shards;
        for (const Ownership& owner : gather->owners) {
            shards.push_back(test::fill_owner(model, owner));
        }
        for (int rank = 0; rank < layout.world_size(); ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            const auto offered = trainer_ownership(model.catalogue, model.config, layout, rank, SourceKind::kGathered);
            ASSERT_TRUE(offered.ok());
            EXPECT_EQ(gather->owners[r].segment_bytes, offered->segment_bytes) << "both describe the same memory";
            const OwnerMemory served = test::fill_owner(model, *offered);
            const GatherDemand& demand = gather->demands[r];
            // Dense and expert records share the buffers, so one demand holds all that the merged route writes.
            Demand both = demand.dense;
            both.records.insert(both.records.end(), demand.experts.records.begin(), demand.experts.records.end());
            const std::vector<Bytes> buffers = test::execute(gather->plan.routes[r], both, shards, chunk_bytes);
            const std::vector<Bytes> want = test::expected_parameters(model, both);
            for (std::size_t p = 0; p < buffers.size(); ++p) {
                const GroupId group = demand.groups[p];
                EXPECT_EQ(both.parameters[p].name, "group " + std::to_string(group));
                EXPECT_EQ(buffers[p], want[p]);
                EXPECT_EQ(buffers[p], served.gathered.at(group)) << "rank " << rank << " group " << group;
            }
            EXPECT_EQ(gather->plan.routes[r].workers, std::vector<int>{rank});
        }
    }
}

TEST(Gather, MakesWholeWhatTrainerOwnershipOffers) {
    const auto models = test::small_models();
    for (const auto& [name, model] : models) {
        for (const char* layout : {"tp=2", "tp=4,pp=2,dp=2"}) {
            expect_gathers(model, layout, name);
        }
    }
    for (const std::size_t moe : {0U, 4U, 7U, 8U}) {
        for (const char* layout : {"tp=2,dp=2,ep=2,etp=2", "dp=4,ep=2,etp=2", "tp=4,etp=4,pp=2"}) {
            expect_gathers(models[moe].second, layout, models[moe].first);
        }
    }
    for (const char* layout : {"fsdp=3,tp=2,dp=2", "tp=4,dp=2,format=megatron"}) {
        expect_gathers(models[0].second, layout, models[0].first);
        expect_gathers(models[1].second, layout, models[1].first);
    }
}

TEST(Gather, StaysInTheStageAndTheReplicaAndCountsBytesByGrid) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    const TrainerLayout layout = *TrainerLayout::parse("tp=2,pp=2,dp=4,ep=2,etp=2");
    const auto gather = gather_plan(model.catalogue, model.config, layout, {});
    ASSERT_TRUE(gather.ok()) << gather.status().message();
    for (int rank = 0; rank < layout.world_size(); ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        const auto me = layout.coordinates(rank);
        GatherBytes counted;
        for (const Chunk& chunk : gather->plan.routes[r].chunks) {
            const auto other = layout.coordinates(chunk.owner);
            EXPECT_EQ(other.pp, me.pp);
            EXPECT_EQ(chunk.path == Path::kMapped, chunk.owner == rank);
            const bool tp_peer = other.dp == me.dp;
            const bool etp_peer = other.ep == me.ep && other.edp == me.edp;
            EXPECT_TRUE(tp_peer || etp_peer);
        }
        // Half of everything that is cut lies at the one peer.
        const auto offered = trainer_ownership(model.catalogue, model.config, layout, rank, SourceKind::kGathered);
        for (const OwnedRegion& region : offered->regions) {
            if (region.segment == kGatheredSegment) {
                std::int64_t bytes = size_of(model.catalogue[region.tensor].dtype);
                for (std::size_t d = 0; d < region.begin.size(); ++d) {
                    bytes *= region.end[d] - region.begin[d];
                }
                const bool expert = model.catalogue[region.tensor].name.find(".experts.") != std::string::npos;
                (expert ? counted.etp : counted.tp) += bytes / 2;
                counted.local += bytes / 2;
            }
        }
        EXPECT_EQ(gather->bytes[r].tp, counted.tp);
        EXPECT_EQ(gather->bytes[r].etp, counted.etp);
        EXPECT_EQ(gather->bytes[r].fsdp, 0);
        EXPECT_EQ(gather->bytes[r].local, counted.local);
        EXPECT_GT(counted.tp, 0);
        EXPECT_GT(counted.etp, 0);
    }
}

TEST(Gather, ReplicatedHeadsComeFromTheRankItselfWhereItHasThem) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    // Two KV heads on four ranks: each rank has one of the two already.
    const auto gather = gather_plan(model.catalogue, model.config, *TrainerLayout::parse("tp=4,ep=4"), {});
    ASSERT_TRUE(gather.ok());
    const std::int64_t kv = 3 * 2 * 16 * 64 * 2;
    for (std::size_t rank = 0; rank < 4; ++rank) {
        std::int64_t cut = 0;
        for (const CopyRecord& record : gather->demands[rank].dense.records) {
            cut += record.copy.bytes();
        }
        // Vocabulary: 250 rows in pieces of 63, 63, 63 and 61.
        const std::int64_t rows = rank < 3 ? 63 : 61;
        const std::int64_t vocabulary = 2 * 250 * 64 * 2;
        EXPECT_EQ(gather->bytes[rank].local, (cut - kv - vocabulary) / 4 + kv / 2 + 2 * rows * 64 * 2);
        EXPECT_EQ(gather->bytes[rank].tp, cut - gather->bytes[rank].local);
        EXPECT_EQ(gather->bytes[rank].etp, 0);
    }
}

TEST(Gather, NothingToGatherWithoutCuts) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    const auto gather = gather_plan(model.catalogue, model.config, *TrainerLayout::parse("pp=2,dp=2,ep=2"), {});
    ASSERT_TRUE(gather.ok());
    for (const Route& route : gather->plan.routes) {
        EXPECT_TRUE(route.chunks.empty());
    }
    EXPECT_TRUE(gather->demands[0].groups.empty());
}

}  // namespace
}  // namespace sluice

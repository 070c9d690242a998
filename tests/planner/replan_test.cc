#include "planner/replan.h"

#include "planner/dry_run.h"
#include "planner/plan_codec.h"
#include "planner/trainer_ownership.h"
#include "tests/planner/plan_execution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

using test::SmallModel;
using testing::HasSubstr;

struct World {
    std::vector<Ownership> owners;
    WorkerLayout layout;
    std::vector<Demand> demands;
    std::vector<DemandRequest> requests;

    World(const SmallModel& model, const std::string& trainer, const std::string& worker, const ExpertMap& map = {})
        : layout(*WorkerLayout::parse(worker)) {
        layout.expert_map = map;
        const TrainerLayout trainers = *TrainerLayout::parse(trainer);
        for (int rank = 0; rank < trainers.world_size(); ++rank) {
            owners.push_back(*trainer_ownership(model.catalogue, model.config, trainers, rank, SourceKind::kResident));
        }
        for (int rank = 0; rank < layout.pool_size(); ++rank) {
            auto demand = dry_run(model.catalogue, model.config, layout, rank);
            EXPECT_TRUE(demand.ok()) << demand.status().message();
            demands.push_back(std::move(*demand));
        }
        for (int rank = 0; rank < layout.pool_size(); ++rank) {
            requests.push_back({&demands[static_cast<std::size_t>(rank)], {rank, rank + layout.pool_size()}, {}});
        }
    }
};

void expect_right_bytes(const SmallModel& model, const World& world, const Plan& plan, const RouteOptions& options) {
    std::vector<test::OwnerMemory> memory;
    for (const Ownership& owner : world.owners) {
        memory.push_back(test::fill_owner(model, owner));
    }
    for (std::size_t d = 0; d < world.demands.size(); ++d) {
        EXPECT_EQ(test::execute(plan.routes[d], world.demands[d], memory, options.chunk_bytes),
                  test::expected_parameters(model, world.demands[d]))
            << "demand " << d;
    }
}

std::string encoded_group(const Route& route, GroupId group) {
    Route part;
    for (const Chunk& chunk : route.chunks) {
        if (chunk.group == group) {
            part.chunks.push_back(chunk);
        }
    }
    return encode_route(part);
}

ExpertMap initial_map(int experts, int redundant, const std::vector<int>& layers) {
    ExpertMap map;
    for (const int layer : layers) {
        for (int slot = 0; slot < experts + redundant; ++slot) {
            map.layers[layer].push_back(slot % experts);
        }
    }
    return map;
}

TEST(ExpertMaps, SayWhichExpertASlotHolds) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");  // 3 layers of 8 experts
    ExpertMap map = initial_map(8, 4, {1});
    EXPECT_EQ(World(model, "tp=1", "tp=4,ep=on,redundant=4").demands[2].records.size(),
              World(model, "tp=1", "tp=4,ep=on,redundant=4", map).demands[2].records.size());
    map.layers[1] = {7, 0, 1, 2, 3, 4, 5, 6, 7, 7, 0, 3};
    const World world(model, "tp=1", "tp=4,ep=on,redundant=4", map);
    for (std::size_t rank = 0; rank < 4; ++rank) {
        std::map<int, std::set<std::pair<std::int64_t, int>>> held;  // layer -> (slot, expert)
        for (const CopyRecord& record : world.demands[rank].records) {
            int layer = 0;
            int expert = 0;
            const std::string& name = model.catalogue[record.tensor].name;
            if (std::sscanf(name.c_str(), "model.layers.%d.mlp.experts.%d.down_proj", &layer, &expert) == 2 &&
                name.ends_with("down_proj.weight")) {
                held[layer].emplace(record.copy.dst_offset / (64 * 32 * 2), expert);
            }
        }
        for (std::int64_t slot = 0; slot < 3; ++slot) {
            const auto physical = rank * 3 + static_cast<std::size_t>(slot);
            EXPECT_TRUE(held[1].contains({slot, static_cast<int>(map.layers[1][physical])})) << rank << " " << slot;
            EXPECT_TRUE(held[0].contains({slot, static_cast<int>(physical % 8)})) << "a layer without a map";
        }
        EXPECT_EQ(held[1].size(), 3U);
    }
}

TEST(ExpertMaps, ThatDoNotFitAreRefusedInOneLine) {
    const SmallModel model = test::small_model("Kimi-K2");  // layer 0 dense, 8 experts
    const auto refusal = [&](const std::string& worker, const ExpertMap& map, const SmallModel& of) {
        WorkerLayout layout = *WorkerLayout::parse(worker);
        layout.expert_map = map;
        const Status status = dry_run(of.catalogue, of.config, layout, 0).status();
        EXPECT_FALSE(status.ok());
        EXPECT_EQ(status.message().find('\n'), std::string::npos);
        return status.message();
    };
    EXPECT_THAT(refusal("tp=2,ep=on", {{{1, {0, 1, 2}}}}, model), HasSubstr("layer 1 has 3 slots"));
    EXPECT_THAT(refusal("tp=2,ep=on", {{{1, {0, 1, 2, 3, 4, 5, 6, 8}}}}, model), HasSubstr("names expert 8"));
    EXPECT_THAT(refusal("tp=2,ep=on", {{{1, {0, 1, 2, 3, 4, 5, 6, 6}}}}, model), HasSubstr("no slot for expert 7"));
    EXPECT_THAT(refusal("tp=2,ep=on", initial_map(8, 0, {0}), model), HasSubstr("layer 0 of this model has no routed"));
    EXPECT_THAT(refusal("tp=2", initial_map(8, 0, {1}), model), HasSubstr("needs ep=on"));
    EXPECT_THAT(refusal("tp=2,ep=on,placement=round_robin", initial_map(8, 0, {1}), model), HasSubstr("linear"));
    EXPECT_THAT(refusal("tp=2,ep=on", initial_map(8, 0, {1}), test::small_model("gpt-oss-20b")), HasSubstr("gpt-oss"));
    for (const char* text :
         {"", "[]", "{}", R"({"physical_to_logical": {}})", R"({"physical_to_logical": {"x": [0]}})",
          R"({"physical_to_logical": {"01": [0]}})", R"({"physical_to_logical": {"1": []}})",
          R"({"physical_to_logical": {"1": [0.5]}})", R"({"physical_to_logical": {"1": [0]}, "a": 1})"}) {
        EXPECT_EQ(ExpertMap::parse(text).status().code(), StatusCode::kInvalidArgument) << text;
    }
    EXPECT_EQ(ExpertMap::parse(R"({"physical_to_logical": {"1": [1, 0], "2": [0, 1]}})").value(),
              (ExpertMap{{{1, {1, 0}}, {2, {0, 1}}}}));
}

// Two experts of one layer change places: nothing but their records moves.
TEST(Replanning, RoutesOnlyTheExpertsThatMoved) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    const RouteOptions options{4096, RouteOptions::PathChoice::kAuto};
    const std::string trainer = "tp=2,pp=2,dp=2,ep=4";
    const std::string worker = "tp=4,ep=on,redundant=4";
    ExpertMap map = initial_map(8, 4, {0, 1, 2});
    const World before(model, trainer, worker, map);
    const Plan plan = route(model.catalogue, before.owners, before.requests, options).value();
    std::swap(map.layers[1][1], map.layers[1][7]);  // slots of ranks 0 and 2
    const World after(model, trainer, worker, map);

    const auto changed = replan(model.catalogue, before.owners, before.requests, plan, after.requests, options);
    ASSERT_TRUE(changed.ok()) << changed.status().message();
    std::size_t records = 0;
    for (const Demand& demand : after.demands) {
        records += demand.records.size();
    }
    EXPECT_EQ(changed->records_routed, 2U * 3U) << "gate, up and down of two slots";
    EXPECT_EQ(changed->records_kept, records - 6);
    const GroupId layer = 2;
    std::size_t kept = 0;
    for (std::size_t d = 0; d < before.demands.size(); ++d) {
        for (GroupId group = 0; group < model.catalogue.groups(); ++group) {
            const bool same = encoded_group(plan.routes[d], group) == encoded_group(changed->plan.routes[d], group);
            EXPECT_EQ(same, group != layer || d == 1 || d == 3) << "demand " << d << " group " << group;
        }
        for (const Chunk& chunk : plan.routes[d].chunks) {
            kept += chunk.group != layer || d == 1 || d == 3 ? 1 : 0;
        }
        EXPECT_EQ(changed->plan.routes[d].workers, plan.routes[d].workers);
    }
    EXPECT_EQ(changed->chunks_kept, kept);
    EXPECT_GT(changed->chunks_made, 0U);

    // As from scratch: the same fingerprint and bytes, group by group.
    const Plan scratch = route(model.catalogue, after.owners, after.requests, options).value();
    EXPECT_EQ(changed->plan.fingerprint, scratch.fingerprint);
    EXPECT_EQ(changed->plan.group_order, scratch.group_order);
    expect_right_bytes(model, after, changed->plan, options);
    for (std::size_t d = 0; d < after.demands.size(); ++d) {
        std::map<GroupId, std::int64_t> ours;
        std::map<GroupId, std::int64_t> theirs;
        for (const Chunk& chunk : changed->plan.routes[d].chunks) {
            ours[chunk.group] += chunk.wire_bytes;
        }
        for (const Chunk& chunk : scratch.routes[d].chunks) {
            theirs[chunk.group] += chunk.wire_bytes;
        }
        EXPECT_EQ(ours, theirs);
    }
    EXPECT_TRUE(check_fingerprint(changed->plan, model.catalogue, after.owners, after.requests, options).ok());

    // What did not change at all stays as it was.
    const auto again = replan(model.catalogue, after.owners, after.requests, changed->plan, after.requests, options);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->records_routed, 0U);
    EXPECT_EQ(again->chunks_made, 0U);
    for (std::size_t d = 0; d < after.demands.size(); ++d) {
        EXPECT_EQ(encode_route(again->plan.routes[d]), encode_route(changed->plan.routes[d]));
    }
}

// One map after the other, in fused and separate experts, from trainers that cut and from those that do not.
TEST(Replanning, GivesTheRightBytesMapAfterMap) {
    std::mt19937 random(5);
    for (const auto& [name, trainer] :
         std::vector<std::pair<std::string, std::string>>{{"Qwen3-30B-A3B", "tp=2,dp=2,ep=2,etp=2"},
                                                          {"Kimi-K2", "dp=4,ep=4,format=megatron"},
                                                          {"Llama-4-Scout-17B-16E", "tp=2,dp=2,ep=2,format=megatron"},
                                                          {"Llama-4-Scout-17B-16E", "fsdp=3"}}) {
        const SmallModel model = test::small_model(name);
        const std::vector<int> layers = name == "Kimi-K2" ? std::vector{1, 2} : std::vector{0, 1};
        for (const std::int64_t chunk : {std::int64_t{1000}, std::int64_t{1} << 20}) {
            const RouteOptions options{chunk, RouteOptions::PathChoice::kAuto};
            ExpertMap map = initial_map(8, 2, layers);
            World before(model, trainer, "tp=2,ep=on,redundant=2", map);
            Plan plan = route(model.catalogue, before.owners, before.requests, options).value();
            for (int round = 0; round < 3; ++round) {
                auto& slots = map.layers[layers[random() % 2]];
                std::shuffle(slots.begin(), slots.end(), random);
                World after(model, trainer, "tp=2,ep=on,redundant=2", map);
                auto changed = replan(model.catalogue, before.owners, before.requests, plan, after.requests, options);
                ASSERT_TRUE(changed.ok()) << changed.status().message();
                expect_right_bytes(model, after, changed->plan, options);
                plan = std::move(changed->plan);
                before.demands = after.demands;
            }
        }
    }
}

TEST(Replanning, AnOldPlanIsRefusedByItsFingerprint) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    const World before(model, "tp=2", "tp=2,ep=on");
    const Plan plan = route(model.catalogue, before.owners, before.requests, {}).value();
    EXPECT_TRUE(check_fingerprint(plan, model.catalogue, before.owners, before.requests, {}).ok());
    ExpertMap map = initial_map(8, 0, {1});
    std::swap(map.layers[1][0], map.layers[1][7]);
    const World after(model, "tp=2", "tp=2,ep=on", map);
    const Status refused = check_fingerprint(plan, model.catalogue, after.owners, after.requests, {});
    EXPECT_EQ(refused.code(), StatusCode::kPlanRefused);
    EXPECT_THAT(refused.message(), HasSubstr("expert map"));
    EXPECT_EQ(refused.message().find('\n'), std::string::npos);
    EXPECT_EQ(replan(model.catalogue, after.owners, after.requests, plan, after.requests, {}).status().message(),
              refused.message())
        << "what is called old must be the plan's own";
    const World other(model, "tp=2", "tp=2,ep=on,redundant=2");
    EXPECT_THAT(replan(model.catalogue, before.owners, before.requests, plan, other.requests, {}).status().message(),
                HasSubstr("plan from scratch"));
    World mapped = after;
    for (std::size_t d = 0; d < mapped.requests.size(); ++d) {
        mapped.requests[d].demand = &mapped.demands[d];
        mapped.requests[d].mapped_owners = {0, 1};
    }
    EXPECT_THAT(replan(model.catalogue, before.owners, before.requests, plan, mapped.requests, {}).status().message(),
                HasSubstr("plan from scratch"));
}

}  // namespace
}  // namespace sluice

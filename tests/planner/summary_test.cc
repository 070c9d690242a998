#include "planner/dry_run.h"
#include "planner/plan_summary.h"
#include "planner/router.h"
#include "planner/trainer_ownership.h"
#include "tests/planner/plan_execution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace sluice {
namespace {

using test::SmallModel;
using ::testing::HasSubstr;

struct Planned {
    std::vector<Ownership> owners;
    std::vector<Demand> demands;
    Plan plan;
};

Planned make_plan(const SmallModel& model, const std::string& trainer, const std::string& worker,
                  RouteOptions options = {}) {
    Planned out;
    const TrainerLayout trainers = *TrainerLayout::parse(trainer);
    for (int rank = 0; rank < trainers.world_size(); ++rank) {
        out.owners.push_back(*trainer_ownership(model.catalogue, model.config, trainers, rank, SourceKind::kResident));
    }
    const WorkerLayout workers = *WorkerLayout::parse(worker);
    for (int rank = 0; rank < workers.pool_size(); ++rank) {
        out.demands.push_back(*dry_run(model.catalogue, model.config, workers, rank));
    }
    std::vector<DemandRequest> requests;
    for (int rank = 0; rank < workers.pool_size(); ++rank) {
        DemandRequest request;
        request.demand = &out.demands[static_cast<std::size_t>(rank)];
        for (int replica = 0; replica < workers.replicas; ++replica) {
            request.workers.push_back(replica * workers.pool_size() + rank);
        }
        if (options.path == RouteOptions::PathChoice::kMapped) {
            request.mapped_owners.resize(out.owners.size());
            std::iota(request.mapped_owners.begin(), request.mapped_owners.end(), 0);
        }
        requests.push_back(request);
    }
    auto plan = route(model.catalogue, out.owners, requests, options);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    out.plan = std::move(*plan);
    return out;
}

TEST(PlanSummary, JsonHasTheContractsKeysAndItsSumsAgree) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    const Planned planned = make_plan(model, "tp=2,pp=2,dp=2,ep=4", "tp=2,ep=on,replicas=3");
    SummaryFacts facts;
    facts.model_name = "small";
    facts.workers = 6;
    facts.pool_of_demand = {0, 0};
    facts.padding_bytes = 12;
    facts.unread_tensors = {"x"};
    facts.plan_seconds = 0.5;
    facts.bound =
        cost_bound(*ClusterSpec::parse("gpus_per_node=8,nic_gbps=400"), planned.plan, planned.owners, 6, nullptr);
    const PlanSummary summary = summarize(model.catalogue, planned.owners, planned.plan, facts);
    const nlohmann::json j = to_json(summary);
    for (const char* key : {"schema", "model", "trainers", "workers", "bytes", "worker_ranks", "trainer_ranks",
                            "coverage", "memory", "digest", "plan_seconds", "plan_bytes", "bound"}) {
        EXPECT_TRUE(j.contains(key)) << key;
    }
    EXPECT_EQ(j["schema"], 1);
    EXPECT_EQ(j["trainers"], 8);
    EXPECT_EQ(j["workers"], 6);
    EXPECT_EQ(j["model"]["tensors"], model.catalogue.size());
    EXPECT_EQ(j["model"]["bytes"], model.catalogue.bytes());
    EXPECT_EQ(j["digest"].get<std::string>().size(), 16U);
    EXPECT_EQ(j["bytes"]["overread"], 0);
    std::int64_t pulled = 0;
    ASSERT_EQ(j["worker_ranks"].size(), 6U);
    for (std::size_t w = 0; w < 6; ++w) {
        const auto& rank = j["worker_ranks"][w];
        EXPECT_EQ(rank["rank"], w);
        std::int64_t from = 0;
        for (const auto& [trainer, bytes] : rank["from"].items()) {
            EXPECT_LT(std::stoi(trainer), 8);
            from += bytes.get<std::int64_t>();
        }
        EXPECT_EQ(from, rank["bytes"].get<std::int64_t>());
        EXPECT_EQ(rank["bytes"], j["worker_ranks"][w % 2]["bytes"]) << "replicas pull the same";
        pulled += from;
    }
    EXPECT_EQ(pulled, j["bytes"]["pulled"].get<std::int64_t>());
    const auto& path = j["bytes"]["by_path"];
    EXPECT_EQ(pulled, path["direct"].get<std::int64_t>() + path["packed"].get<std::int64_t>() +
                          path["mapped"].get<std::int64_t>());
    std::int64_t served = 0;
    std::int64_t owned = 0;
    for (const auto& rank : j["trainer_ranks"]) {
        served += rank["served_bytes"].get<std::int64_t>();
        owned += rank["owned_bytes"].get<std::int64_t>();
    }
    EXPECT_EQ(served, pulled);
    // Experts lie once; what tp cuts, and nothing else, twice (dp); the rest on all four ranks of a stage.
    EXPECT_GT(owned, model.catalogue.bytes());
    EXPECT_GT(j["plan_bytes"].get<std::int64_t>(), 0);
    const std::string table = to_table(summary);
    for (const char* part : {"small", "8 trainers, 6 workers", "expected", "trainer", "worker"}) {
        EXPECT_THAT(table, HasSubstr(part));
    }
    EXPECT_EQ(table.back(), '\n');
}

TEST(PlanSummary, PathsAreCountedApart) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    for (const auto& [choice, key] : {std::pair{RouteOptions::PathChoice::kPacked, "packed"},
                                      std::pair{RouteOptions::PathChoice::kMapped, "mapped"},
                                      std::pair{RouteOptions::PathChoice::kDirect, "direct"}}) {
        const Planned planned = make_plan(model, "tp=2", "tp=2", {4 << 20, choice});
        const nlohmann::json j = to_json(summarize(model.catalogue, planned.owners, planned.plan, {}));
        EXPECT_EQ(j["bytes"]["by_path"][key], j["bytes"]["pulled"]);
    }
}

TEST(PlanSummary, HumanBytes) {
    EXPECT_EQ(human_bytes(0), "0 B");
    EXPECT_EQ(human_bytes(999), "999 B");
    EXPECT_EQ(human_bytes(1500), "1.50 kB");
    EXPECT_EQ(human_bytes(44'400'000'000), "44.4 GB");
    EXPECT_EQ(human_bytes(999'999), "1.00 MB");
}

TEST(ClusterSpec, ParsesDecimalsAndRefusesByKey) {
    const auto spec = ClusterSpec::parse("gpus_per_node=1,nic_gbps=0.2,nvlink_gbps=3600.5");
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    EXPECT_EQ(spec->gpus_per_node, 1);
    EXPECT_DOUBLE_EQ(spec->nic_gbps, 0.2);
    EXPECT_DOUBLE_EQ(spec->nvlink_gbps, 3600.5);
    for (const char* text :
         {"", "gpus_per_node=8", "nic_gbps=400", "gpus_per_node=1.5,nic_gbps=1", "gpus_per_node=8,nic_gbps=0",
          "gpus_per_node=8,nic_gbps=-1", "gpus_per_node=8,nic_gbps=nan", "gpus_per_node=8,nic_gbps=inf",
          "gpus_per_node=8,nic_gbps=4,x=1", "gpus_per_node=8,nic_gbps"}) {
        const auto refused = ClusterSpec::parse(text);
        EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << text;
    }
}

// Two stages of one owner each on nodes of their own, two workers on one node; bytes chosen by hand.
TEST(CostModel, BoundsAndGroupOrder) {
    std::vector<Ownership> owners(2);
    owners[1].stage = 1;
    Plan plan;
    const auto chunk = [](GroupId group, int owner, std::int64_t bytes) {
        Chunk out;
        out.group = group;
        out.owner = owner;
        out.wire_bytes = bytes;
        return out;
    };
    plan.group_order = {0, 4, 1, 5, 2, 6, 3, 7};
    const std::int64_t gb = 1'000'000'000;
    Route route;
    route.workers = {0};
    for (const GroupId group : plan.group_order) {
        route.chunks.push_back(chunk(group, group < 4 ? 0 : 1, gb));
    }
    plan.routes = {route, route};
    plan.routes[1].workers = {1};
    const ClusterSpec cluster = *ClusterSpec::parse("gpus_per_node=1,nic_gbps=8");
    const CostBound even = cost_bound(cluster, plan, owners, 2, nullptr);
    EXPECT_NEAR(even.ingress_s, 8, 1e-9);
    EXPECT_NEAR(even.egress_s, 8, 1e-9);
    EXPECT_NEAR(even.wire_s, 8, 1e-9);
    EXPECT_NEAR(even.predicted_s, 9, 1e-9) << "the last chunk of a gigabyte comes on top";
    EXPECT_THAT(even.worst_link, HasSubstr("node 2"));

    // One stage after the other: half of the senders idle, and the prediction says so.
    plan.group_order = {0, 1, 2, 3, 4, 5, 6, 7};
    const CostBound walking = cost_bound(cluster, plan, owners, 2, nullptr);
    EXPECT_NEAR(walking.wire_s, 8, 1e-9);
    EXPECT_NEAR(walking.predicted_s, 17, 1e-9);

    // A gather between nodes shares the NICs.
    GatherPlan gather;
    gather.plan.group_order = plan.group_order;
    gather.plan.routes.resize(2);
    gather.plan.routes[1].chunks = {chunk(0, 0, 3 * gb)};
    EXPECT_NEAR(cost_bound(cluster, plan, owners, 2, &gather).egress_s, 11, 1e-9);
    const ClusterSpec together = *ClusterSpec::parse("gpus_per_node=2,nic_gbps=8");
    const CostBound inside = cost_bound(together, plan, owners, 2, &gather);
    EXPECT_NEAR(inside.egress_s, 8, 1e-9) << "16 GB over the two NICs of a node";
    const ClusterSpec linked = *ClusterSpec::parse("gpus_per_node=2,nic_gbps=8,nvlink_gbps=24");
    EXPECT_NEAR(cost_bound(linked, plan, owners, 2, &gather).predicted_s - inside.predicted_s, 1, 1e-9);
}

}  // namespace
}  // namespace sluice

#include "planner/plan_codec.h"
#include "planner/plan_summary.h"
#include "tests/planner/cluster_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <sys/resource.h>

namespace sluice {
namespace {

TEST(ClusterPlanScale, KimiK2From256TrainersTo128Workers) {
    const test::ClusterPlan p = test::make_cluster_plan("Kimi-K2", "tp=8,pp=8,dp=4,ep=32", "tp=32,ep=on,replicas=4");
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::size_t largest = 0;
    for (const Route& route : p.plan.routes) {
        largest = std::max(largest, encode_route(route).size());
    }
    for (const OwnerRoute& route : owner_routes(p.plan, 256)) {
        largest = std::max(largest, encode_owner_route(route).size());
    }
    const PlanSummary summary = summarize(p.catalogue, p.owners, p.plan, {});
    std::vector<double> stage(8, 0);
    double busiest = 0;
    for (const PlanSummary::TrainerRank& rank : summary.trainer_ranks) {
        stage[static_cast<std::size_t>(rank.rank / 32)] += static_cast<double>(rank.served_bytes) / 32;
        busiest = std::max(busiest, static_cast<double>(rank.served_bytes));
    }
    const CostBound bound =
        cost_bound(*ClusterSpec::parse("gpus_per_node=8,nic_gbps=400"), p.plan, p.owners, 128, nullptr);
    std::printf(
        "ownership %.2f s, demands %.2f s, routes %.2f s, %ld MiB, largest message %zu KiB, busiest %.4f of its "
        "stage's mean, wire %.3f s, predicted %.3f s\n",
        p.ownership_s, p.demand_s, p.route_s, usage.ru_maxrss >> 10, largest >> 10,
        busiest / *std::max_element(stage.begin(), stage.end()), bound.wire_s, bound.predicted_s);
    EXPECT_LE(p.route_s, 5.0);
    EXPECT_LE(usage.ru_maxrss >> 10, 2048);
    EXPECT_LE(largest, 512U << 10);
    EXPECT_LE(busiest, 1.02 * *std::max_element(stage.begin(), stage.end()));
    EXPECT_NEAR(bound.wire_s, 1.33, 1.33 * 0.02);
    EXPECT_LE(bound.predicted_s, 1.05 * bound.wire_s);
}

}  // namespace
}  // namespace sluice

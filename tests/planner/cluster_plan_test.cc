#include "tests/planner/cluster_plan.h"

#include "planner/coverage.h"
#include "planner/plan_codec.h"
#include "planner/plan_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace sluice {
namespace {

using test::ClusterPlan;

std::int64_t bytes_of(const Route& route) {
    return std::accumulate(route.chunks.begin(), route.chunks.end(), std::int64_t{0},
                           [](std::int64_t sum, const Chunk& chunk) { return sum + chunk.wire_bytes; });
}

TEST(ClusterPlan, Qwen3OfTwoHundredThirtyFiveBillionOnTwoNodesEach) {
    const ClusterPlan p = test::make_cluster_plan("Qwen3-235B-A22B", "tp=4,pp=2,dp=2,ep=8", "dp=16,ep=on");
    const std::int64_t hidden = 4096;
    const std::int64_t attention = 2 * 8192 * hidden + 2 * 512 * hidden + 2 * 128;
    const std::int64_t router_and_norms = 128 * hidden + 2 * hidden;
    const std::int64_t experts = 8 * 3 * 1536 * hidden;
    const std::int64_t per_rank = 2 * (94 * (attention + router_and_norms + experts) + 2 * 151936 * hidden + hidden);
    EXPECT_NEAR(static_cast<double>(per_rank), 44.4e9, 0.05e9);
    std::vector<std::int64_t> served(16, 0);
    for (std::size_t d = 0; d < p.demands.size(); ++d) {
        const DemandCoverage coverage = prove_coverage(p.demands[d]);
        EXPECT_TRUE(coverage.status.ok()) << coverage.status.message();
        EXPECT_EQ(coverage.holes, 0);
        EXPECT_EQ(coverage.overlaps, 0);
        EXPECT_EQ(bytes_of(p.plan.routes[d]), per_rank);
        for (const Chunk& chunk : p.plan.routes[d].chunks) {
            EXPECT_LE(chunk.wire_bytes, 4 << 20);
            served[static_cast<std::size_t>(chunk.owner)] += chunk.wire_bytes;
        }
        EXPECT_LE(encode_route(p.plan.routes[d]).size(), 512U << 10);
    }
    // All ranks of a stage can serve its dense tensors, its experts lie on one rank each in equal numbers: a stage's bytes
    // can be spread evenly over its eight ranks, so the busiest stage sets the optimum.
    const std::int64_t first = std::accumulate(served.begin(), served.begin() + 8, std::int64_t{0});
    const std::int64_t second = std::accumulate(served.begin() + 8, served.end(), std::int64_t{0});
    EXPECT_LE(*std::max_element(served.begin(), served.end()), std::max(first, second) / 8 * 102 / 100);

    const CostBound bound =
        cost_bound(*ClusterSpec::parse("gpus_per_node=8,nic_gbps=400"), p.plan, p.owners, 16, nullptr);
    EXPECT_NEAR(bound.wire_s, 0.89, 0.89 * 0.02);
    EXPECT_LE(bound.predicted_s, 1.05 * bound.wire_s);
}

}  // namespace
}  // namespace sluice

// The published layouts: the busiest trainer against the least that ownership permits.
#include "tests/planner/cluster_plan.h"
#include "tests/planner/layouts/best_balance.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

namespace sluice::test {
namespace {

struct Published {
    std::string model;
    std::string trainer;
    std::string worker;
};

class BalanceScale : public testing::TestWithParam<Published> {};

TEST_P(BalanceScale, BusiestTrainerIsAtTheOptimum) {
    const auto& [model, trainer, worker] = GetParam();
    const ClusterPlan p = make_cluster_plan(model, trainer, worker);
    std::vector<DemandRequest> requests;
    for (std::size_t d = 0; d < p.demands.size(); ++d) {
        requests.push_back({&p.demands[d], p.plan.routes[d].workers, {}, -1});
    }
    const OwnerMap map(p.catalogue, p.owners);
    const double best = least_busiest(map.work(requests), map.owners());
    const auto most = static_cast<double>(busiest(p.plan, map.owners()));
    std::printf("%s: busiest trainer %.3f GB, optimum %.3f GB, ratio %.4f\n", model.c_str(), most / 1e9, best / 1e9,
                most / best);
    EXPECT_GE(most, best);
    EXPECT_LE(most, 1.02 * best);
}

INSTANTIATE_TEST_SUITE_P(Models, BalanceScale,
                         testing::Values(Published{"Kimi-K2", "tp=8,pp=8,dp=4,ep=32", "tp=32,ep=on,replicas=4"},
                                         Published{"Qwen3-235B-A22B", "tp=4,pp=2,dp=2,ep=8", "dp=16,ep=on"},
                                         Published{"Qwen3-235B-A22B", "tp=4,pp=2,dp=2,ep=8", "tp=8,replicas=2"}),
                         [](const auto& instance) { return "layout_" + std::to_string(instance.index); });

}  // namespace
}  // namespace sluice::test

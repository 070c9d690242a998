#pragma once

#include "planner/builtin_models.h"
#include "planner/dry_run.h"
#include "planner/router.h"
#include "planner/trainer_ownership.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace sluice::test {

/// A plan at full size: names, shapes and ranks of a real cluster, no bytes.
struct ClusterPlan {
    Catalogue catalogue;
    std::vector<Ownership> owners;
    std::vector<Demand> demands;
    Plan plan;
    double ownership_s = 0;
    double demand_s = 0;
    double route_s = 0;
};

inline ClusterPlan make_cluster_plan(const std::string& model, const std::string& trainer, const std::string& worker) {
    const auto file = builtin_model(model);
    EXPECT_TRUE(file.ok());
    ClusterPlan out{*checkpoint_catalogue(file->config), {}, {}, {}};
    auto start = std::chrono::steady_clock::now();
    const auto lap = [&] {
        const auto now = std::chrono::steady_clock::now();
        return std::chrono::duration<double>(now - std::exchange(start, now)).count();
    };
    const TrainerLayout trainers = *TrainerLayout::parse(trainer);
    for (int rank = 0; rank < trainers.world_size(); ++rank) {
        out.owners.push_back(*trainer_ownership(out.catalogue, file->config, trainers, rank, SourceKind::kResident));
    }
    out.ownership_s = lap();
    const WorkerLayout workers = *WorkerLayout::parse(worker);
    for (int rank = 0; rank < workers.pool_size(); ++rank) {
        out.demands.push_back(*dry_run(out.catalogue, file->config, workers, rank));
    }
    out.demand_s = lap();
    std::vector<DemandRequest> requests;
    for (int rank = 0; rank < workers.pool_size(); ++rank) {
        DemandRequest request;
        request.demand = &out.demands[static_cast<std::size_t>(rank)];
        for (int replica = 0; replica < workers.replicas; ++replica) {
            request.workers.push_back(replica * workers.pool_size() + rank);
        }
        requests.push_back(std::move(request));
    }
    auto plan = route(out.catalogue, out.owners, requests, {});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    out.plan = std::move(*plan);
    out.route_s = lap();
    return out;
}

}  // namespace sluice::test

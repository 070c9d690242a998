#include "cli/plan_builder.h"

#include "planner/coverage.h"
#include "planner/dry_run.h"
#include "planner/replan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

namespace sluice::cli {

Result<BuiltPlan> build_plan(const Model& model, const PlanRequest& request, const PlanFile* before) {
    const auto start = std::chrono::steady_clock::now();
    BuiltPlan built;
    for (int rank = 0; rank < request.trainer.world_size(); ++rank) {
        SLUICE_ASSIGN_OR_RETURN(Ownership ownership, trainer_ownership(model.catalogue, model.config, request.trainer,
                                                                       rank, request.source));
        built.owners.push_back(std::move(ownership));
    }
    std::vector<std::vector<int>> workers_of_demand;
    for (std::size_t pool = 0; pool < request.workers.size(); ++pool) {
        const WorkerLayout& layout = request.workers[pool];
        for (int pool_rank = 0; pool_rank < layout.pool_size(); ++pool_rank) {
            SLUICE_ASSIGN_OR_RETURN(Demand demand, dry_run(model.catalogue, model.config, layout, pool_rank));
            const DemandCoverage coverage = prove_coverage(demand);
            if (!coverage.status.ok()) {
                return coverage.status.with_context(fmt::format("pool {} rank {}", pool, pool_rank));
            }
            built.facts.holes += coverage.holes * layout.replicas;
            built.facts.overlaps += coverage.overlaps * layout.replicas;
            built.facts.padding_bytes += coverage.padding_bytes * layout.replicas;
            std::vector<int> ranks;
            for (int replica = 0; replica < layout.replicas; ++replica) {
                ranks.push_back(built.workers + replica * layout.pool_size() + pool_rank);
            }
            built.demands.push_back(std::move(demand));
            built.pool_of_demand.push_back(static_cast<int>(pool));
            workers_of_demand.push_back(std::move(ranks));
        }
        built.workers += layout.world_size();
    }
    std::vector<int> mapped_owners;
    if (request.route.path == RouteOptions::PathChoice::kMapped) {
        // On one host, that is what it means; where ranks will run is not known here.
        mapped_owners.resize(built.owners.size());
        std::iota(mapped_owners.begin(), mapped_owners.end(), 0);
    }
    std::vector<DemandRequest> requests;
    std::vector<const Demand*> demands;
    for (std::size_t i = 0; i < built.demands.size(); ++i) {
        requests.push_back({.demand = &built.demands[i],
                            .workers = workers_of_demand[i],
                            .allowed_owners = {},
                            .mapped_owners = mapped_owners});
        demands.push_back(&built.demands[i]);
    }
    if (before != nullptr) {
        std::vector<DemandRequest> old_requests;
        for (std::size_t i = 0; i < before->demands.size(); ++i) {
            old_requests.push_back({.demand = &before->demands[i],
                                    .workers = before->plan.routes[i].workers,
                                    .allowed_owners = {},
                                    .mapped_owners = mapped_owners});
        }
        SLUICE_ASSIGN_OR_RETURN(
            Replan changed, replan(model.catalogue, built.owners, old_requests, before->plan, requests, request.route));
        built.replanned = {changed.records_kept, changed.records_routed, changed.chunks_kept, changed.chunks_made};
        built.plan = std::move(changed.plan);
    } else {
        SLUICE_ASSIGN_OR_RETURN(built.plan, route(model.catalogue, built.owners, requests, request.route));
    }
    if (request.source == SourceKind::kGathered) {
        SLUICE_ASSIGN_OR_RETURN(built.gather,
                                gather_plan(model.catalogue, model.config, request.trainer, request.route));
    }
    for (const TensorId id : source_coverage(model.catalogue, demands).unread) {
        built.facts.unread_tensors.push_back(model.catalogue[id].name);
    }
    built.facts.model_name = model.name;
    built.facts.workers = built.workers;
    built.facts.pool_of_demand = built.pool_of_demand;
    built.facts.plan_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return built;
}

}  // namespace sluice::cli

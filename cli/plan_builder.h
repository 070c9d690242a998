#pragma once

#include "cli/common_options.h"
#include "planner/gather.h"
#include "planner/plan.h"
#include "planner/plan_summary.h"
#include "runtime/base/status.h"

#include <optional>
#include <string>
#include <vector>

namespace sluice::cli {

/// The whole plan of a model and its layouts, as one process sees it.
struct BuiltPlan {
    std::vector<Ownership> owners;  ///< By trainer rank.
    std::vector<Demand> demands;    ///< By DemandId.
    std::vector<int> pool_of_demand;
    int workers = 0;
    Plan plan;
    std::optional<GatherPlan> gather;  ///< With a gathered source.
    SummaryFacts facts;                ///< Holes to refused, and plan_seconds; the rest is the caller's.
};

struct PlanRequest {
    TrainerLayout trainer;
    std::vector<WorkerLayout> workers;
    SourceKind source = SourceKind::kResident;
    RouteOptions route;
};

/// Dry run of each distinct rank of each pool, coverage, ownership, routing. The first refusal ends it.
Result<BuiltPlan> build_plan(const Model& model, const PlanRequest& request);

/// The demand of worker rank `worker` (counted within the worker side), or nothing.
std::optional<DemandId> demand_of_worker(const BuiltPlan& plan, int worker);

}  // namespace sluice::cli

#pragma once

#include "cli/common_options.h"
#include "planner/gather.h"
#include "planner/plan.h"
#include "planner/plan_codec.h"
#include "planner/plan_summary.h"
#include "runtime/base/status.h"

#include <optional>
#include <string>
#include <vector>

namespace sluice::cli {

/// How much of an old plan was kept (see planner/replan.h).
struct ReplanCounts {
    std::size_t records_kept = 0;
    std::size_t records_routed = 0;
    std::size_t chunks_kept = 0;
    std::size_t chunks_made = 0;
};

/// The whole plan of a model and its layouts, as one process sees it.
struct BuiltPlan {
    std::vector<Ownership> owners;  ///< By trainer rank.
    std::vector<Demand> demands;    ///< By DemandId.
    std::vector<int> pool_of_demand;
    int workers = 0;
    Plan plan;
    std::optional<GatherPlan> gather;  ///< With a gathered source.
    std::optional<ReplanCounts> replanned;
    SummaryFacts facts;  ///< Holes to refused, and plan_seconds; the rest is the caller's.
};

struct PlanRequest {
    TrainerLayout trainer;
    std::vector<WorkerLayout> workers;
    SourceKind source = SourceKind::kResident;
    RouteOptions route;
};

/// Dry run of each distinct rank of each pool, coverage, ownership, routing. The first refusal ends it. With `before`, a plan of
/// another expert map, only what changed is routed anew; a plan of anything else is refused.
Result<BuiltPlan> build_plan(const Model& model, const PlanRequest& request, const PlanFile* before = nullptr);

}  // namespace sluice::cli

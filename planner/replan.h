#pragma once

#include "planner/catalogue.h"
#include "planner/ownership.h"
#include "planner/plan.h"
#include "planner/router.h"
#include "runtime/base/status.h"

#include <cstddef>
#include <span>

namespace sluice {

/// Refuses (plan refused, one line) a plan that was not made for just these: another catalogue, layout, expert map, option or
/// format, seen by the fingerprint.
Status check_fingerprint(const Plan& plan, const Catalogue& catalogue, std::span<const Ownership> owners,
                         std::span<const DemandRequest> demands, const RouteOptions& options);

/// A plan after a change, and how much of the old one it keeps.
struct Replan {
    Plan plan;
    std::size_t records_kept = 0;    ///< Their bytes come from the same owners by the same paths as before.
    std::size_t records_routed = 0;  ///< New or moved ones.
    std::size_t chunks_kept = 0;     ///< Of (demand, group) in which nothing changed: as they were.
    std::size_t chunks_made = 0;
};

/// What `old_plan`, which must be the plan of `old_demands` (see check_fingerprint), becomes when demands want other
/// experts: only records that changed are given owners anew, balanced with what stays. The demands must be as many and of the
/// same parameters and ranks. The result has the demands, bytes and fingerprint of a plan from scratch; owners of what
/// stays are those of the old plan, where a plan from scratch might spread them differently.
Result<Replan> replan(const Catalogue& catalogue, std::span<const Ownership> owners,
                      std::span<const DemandRequest> old_demands, const Plan& old_plan,
                      std::span<const DemandRequest> new_demands, const RouteOptions& options);

}  // namespace sluice

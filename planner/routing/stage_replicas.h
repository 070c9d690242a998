#pragma once

#include "planner/catalogue.h"
#include "planner/ownership.h"
#include "runtime/base/status.h"

#include <span>

namespace sluice {

/// A tensor that ranks of several stages offer (a tied table at both ends) must be a replica: the same boxes on each of
/// them. Refuses (plan refused) another, naming tensor, stages and the first box that only one of them has.
Status check_stage_replicas(const Catalogue& catalogue, std::span<const Ownership> owners);

}  // namespace sluice

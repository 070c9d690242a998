#pragma once

#include "planner/catalogue.h"
#include "planner/ownership.h"
#include "planner/router.h"

#include <cstdint>
#include <span>

namespace sluice {

/// XXH3-64 over all that decides a plan: catalogue, ownerships, demands with their ranks, options, and the format version.
std::uint64_t plan_fingerprint(const Catalogue& catalogue, std::span<const Ownership> owners,
                               std::span<const DemandRequest> demands, const RouteOptions& options);

}  // namespace sluice

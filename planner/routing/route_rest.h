#pragma once

#include "planner/router.h"

#include <span>
#include <vector>

namespace sluice {

/// What stays of a demand's route when some of its records are routed anew.
struct KeptRoute {
    std::vector<Chunk> whole;  ///< Those of groups in which nothing changed, in reading order.
    std::vector<Chunk> cut;    ///< What is left of those of the other groups: they are cut into chunks again.
};

/// The plan of `kept` and of the records of `changed`, one of each for each demand. What stays counts in the balance.
Result<Plan> route_rest(const Catalogue& catalogue, std::span<const Ownership> owners,
                        std::span<const DemandRequest> changed, std::span<const KeptRoute> kept,
                        const RouteOptions& options);

}  // namespace sluice

#pragma once

#include "planner/gather.h"
#include "planner/ownership.h"
#include "planner/plan.h"
#include "runtime/base/status.h"

#include <span>
#include <string>
#include <string_view>

namespace sluice {

/// A cluster of equal nodes: every GPU has a rank and a NIC of its own. Trainer ranks fill nodes from the first one on, workers
/// the nodes after them. The text form is "gpus_per_node=8,nic_gbps=400[,nvlink_gbps=3600]"; rates are Gbit/s per GPU
/// and direction, decimals allowed.
struct ClusterSpec {
    int gpus_per_node = 8;
    double nic_gbps = 0;
    double nvlink_gbps = 0;  ///< 0 = not known: what stays inside a node costs no time.

    static Result<ClusterSpec> parse(std::string_view text);
};

/// Lower bounds of one sync, in seconds, and what the plan is expected to take.
struct CostBound {
    double ingress_s = 0;    ///< Busiest node's receiving side.
    double egress_s = 0;     ///< Busiest node's sending side, what trainers gather from other nodes included.
    double wire_s = 0;       ///< The larger of the two.
    double predicted_s = 0;  ///< With the group order as it is, the first gather and the last chunk.
    std::string worst_link;  ///< Which node and direction sets wire_s.
};

/// `gather` is empty for a resident source.
CostBound cost_bound(const ClusterSpec& cluster, const Plan& plan, std::span<const Ownership> owners, int workers,
                     const GatherPlan* gather);

}  // namespace sluice

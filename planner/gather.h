#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/layout.h"
#include "planner/model_config.h"
#include "planner/ownership.h"
#include "planner/plan.h"
#include "planner/router.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

/// What trainer rank `rank` really stores: its shards, in segment 0. The owners' side of a gather; the same memory that
/// trainer_ownership offers.
Result<Ownership> shard_ownership(const Catalogue& catalogue, const ModelConfig& config, const TrainerLayout& layout,
                                  int rank);

/// What trainer rank `rank` pulls from its peers before it can publish: the tensors that it stores in part, made whole.
/// Both demands have the same parameters: one buffer per group that has anything to gather, dtype u8, named "group N", of the
/// size and with the offsets that trainer_ownership(..., kGathered) gives. Records are identity copies.
struct GatherDemand {
    Demand dense;
    Demand experts;
    /// Who may serve them, the rank itself included: peers in tp (and fsdp) for dense tensors, peers in etp for experts,
    /// of the same stage and the same data-parallel replica.
    std::vector<int> dense_owners;
    std::vector<int> expert_owners;
    /// Group of each parameter.
    std::vector<GroupId> groups;
};
Result<GatherDemand> gather_demand(const Catalogue& catalogue, const ModelConfig& config, const TrainerLayout& layout,
                                   int rank);

/// Routes the gathers of all trainer ranks over their shards: route r is that of rank r, its parameters are those of demands[r], its
/// only worker is r. Chunks whose owner is the rank itself have Path::kMapped: local copies.
Result<Plan> route_gather(const Catalogue& catalogue, std::span<const Ownership> shards,
                          std::span<const GatherDemand> demands, const RouteOptions& options);

/// Bytes that a rank gathers, by the grid over which they come. A plan with anything over ep or pp is a wrong one.
struct GatherBytes {
    std::int64_t tp = 0;
    std::int64_t etp = 0;
    std::int64_t fsdp = 0;
    std::int64_t ep = 0;
    std::int64_t pp = 0;
    std::int64_t local = 0;  ///< Copied from its own shards.
};
/// Counts them in the route of trainer rank `rank`, which must come from `demand`.
GatherBytes gather_bytes(const TrainerLayout& layout, int rank, const GatherDemand& demand, const Route& route);

/// The gather of all trainer ranks as one plan: route r is that of rank r, its parameters are those of gather_demand(r), its only
/// worker is r. Chunks whose owner is the rank itself have Path::kMapped: local copies.
struct GatherPlan {
    Plan plan;
    std::vector<GatherDemand> demands;  ///< By rank.
    std::vector<Ownership> owners;      ///< By rank: shard_ownership.
    std::vector<GatherBytes> bytes;     ///< By rank.
};
Result<GatherPlan> gather_plan(const Catalogue& catalogue, const ModelConfig& config, const TrainerLayout& layout,
                               const RouteOptions& options);

}  // namespace sluice

#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/gather.h"
#include "planner/ownership.h"
#include "planner/plan.h"
#include "planner/router.h"
#include "runtime/base/status.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/services/deadline.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

/// What one rank puts into the plan. A rank that cannot take part says so in `status`, and then all ranks end set-up with it.
struct RankInput {
    bool trainer = false;
    int own_rank = 0;  ///< Counted within its side, from 0 without gaps.
    Status status;
    /// The host (host_identity) on which a trainer's memory can be mapped, or a worker is ready to map; empty: nowhere.
    std::string mappable_on;
    /// Its weights are in GPU memory.
    bool device_memory = false;
    /// Its transport cannot reach them there: they go through host memory.
    bool staged = false;

    /// A trainer's offer to the workers.
    Ownership ownership;
    /// A trainer that gathers by pulling from its peers: what it stores, what it wants of them, who may serve it.
    struct Gather {
        Ownership shards;
        GatherDemand demand;
    };
    std::optional<Gather> gather;
    /// A gathering trainer's CollectiveGroup, if it was given one.
    enum class Group : std::uint8_t { kNone, kGood, kFailed };
    Group group = Group::kNone;

    /// A worker's demand. Workers with the same `demand_key` (the same rank of replicas of one pool) share one; only the first of them
    /// needs to give it.
    int demand_key = 0;
    std::optional<Demand> demand;
    std::uint64_t demand_digest = 0;  ///< Of the demand, as it came to rank 0.
};

/// A rank's part of the compiled plan, and who is who.
struct RankPlan {
    std::uint64_t session = 0;  ///< Drawn by rank 0; no two sessions share it.
    std::uint64_t fingerprint = 0;
    /// Weights lie in GPU memory on some ranks, and not on all, or out of a transport's reach: everything is packed into host memory and scattered
    /// out of it.
    bool staged = false;
    std::vector<int> trainers;  ///< World rank of each trainer rank.
    std::vector<int> workers;   ///< World rank of each worker rank.
    Route route;                ///< A worker's.
    OwnerRoute owner_route;     ///< A trainer's, towards the workers.
    Route gather_route;         ///< A gathering trainer's pulls from its peers (owner = trainer rank).
    OwnerRoute gather_owner_route;
    bool gathers_by_group = false;  ///< All trainers that gather do so by their CollectiveGroup; otherwise they pull.
    std::vector<GroupId> group_order;  ///< A gathering trainer's: all groups, in the one order for everybody.
    std::int64_t wire_bytes = 0;       ///< Size of this rank's part as it came over the bootstrap.
};

/// Collective over all ranks: gathers the inputs at rank 0, which checks that all mean the same catalogue, routes, and
/// scatters. Every rank returns the same failure, the one that names the first rank at fault; for another catalogue, with
/// the first tensor and field in which it differs.
Result<RankPlan> compile_rank_plan(Bootstrap& bootstrap, const Catalogue& catalogue, const RankInput& input,
                                   const RouteOptions& options, Deadline deadline);

}  // namespace sluice

#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/ownership.h"
#include "planner/plan.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

struct RouteOptions {
    std::int64_t chunk_bytes = 4 << 20;
    enum class PathChoice : std::uint8_t { kAuto, kDirect, kPacked, kMapped } path = PathChoice::kAuto;
    /// With kAuto: pieces whose runs in the owner's memory are shorter are packed, unless they are one run.
    std::int64_t direct_run = 64 << 10;
    /// With kAuto: pieces of one run shorter than this are packed where some of a group come from one owner, or others of it
    /// are packed anyway. A get costs as much as copying so many bytes.
    std::int64_t direct_piece = 32 << 10;
};

/// One demand with the ranks that share it (one per replica), and the trainer ranks that may serve it (empty = all).
struct DemandRequest {
    const Demand* demand = nullptr;
    std::vector<int> workers;
    std::vector<int> allowed_owners;
    /// The trainer rank that reads this demand itself (a gather), or -1. What it owns it takes from itself, by Path::kMapped.
    int self = -1;
    /// Trainer ranks, rising, whose memory every one of `workers` can map. They are read by Path::kMapped unless another
    /// path is asked for or the dtype changes.
    std::vector<int> mapped_owners = {};
};

/// The least `chunk_bytes` that route() accepts.
inline constexpr std::int64_t kMinChunkBytes = 256;

/// Resolves every record to owners, balances bytes over the owners of a region, cuts chunks and orders them.
/// Deterministic. Refuses (plan refused) a tensor of which two stages hold different boxes, a range of a tensor that nobody
/// owns, naming tensor, range and ranks that own parts, and PathChoice::kMapped of a trainer that a demand cannot map.
Result<Plan> route(const Catalogue& catalogue, std::span<const Ownership> owners,
                   std::span<const DemandRequest> demands, const RouteOptions& options);

}  // namespace sluice

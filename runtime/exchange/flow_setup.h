#pragma once

#include "planner/plan.h"
#include "runtime/exchange/pull_engine.h"
#include "runtime/exchange/remote_memory.h"
#include "runtime/exchange/server.h"
#include "runtime/exchange/session.h"
#include "transport/transport.h"

#include <cstddef>
#include <span>
#include <vector>

/// Turns a rank's part of the plan and the cards of the session into what a Server and a PullEngine are built from.
namespace sluice {

/// What a registered region looks like to those who may read it. `shared` when it can also be mapped.
RemoteRegion remote_region(const transport::MemoryRegion& region, std::optional<SharedMemoryHandle> shared = {},
                           std::vector<std::byte> shared_device = {});

/// A piece of the caller's memory, with what the caller says it is.
struct StatedMemory {
    const std::byte* data = nullptr;
    MemoryKind kind = MemoryKind::kHost;
};
/// Whether this memory is that of the session's device. Refuses device memory without a device or of another one, both kinds on one rank, and
/// what is not the memory that it is said to be.
Result<bool> device_memory(const Session& session, std::span<const StatedMemory> memory);
/// False, with a warning that says why and what to do, when other processes cannot get at this device memory: it then has to be staged.
bool exportable(const Session& session, std::span<const StatedMemory> memory);
/// RankInput::mappable_on of a rank that has such memory, when it may map or be mapped.
std::string mappable_identity(const Session& session, bool device_memory);

/// Refuses staging that cannot hold the largest chunk of `route`: it would be waited for in vain.
Status check_staging(const Route& route, std::int64_t staging_bytes);

/// The consumers of each demand of `route`; `world_ranks` maps the ranks that the route names.
std::vector<std::vector<ServedConsumer>> served_consumers(const Session& session, const OwnerRoute& route,
                                                          std::span<const int> world_ranks);

/// The owners that `route` names, with their memory from the session's cards, mapped where the route wants that. `own_segments`
/// is for the owner that is this rank itself. Refuses a card that does not hold the segments, buffers or slots that the
/// route reads (an internal error that names the owner), and memory that cannot be mapped.
Result<std::vector<PullOwner>> pull_owners(const Session& session, const Route& route, FlowId flow, int own_world_rank,
                                           std::span<const std::byte* const> own_segments);

/// That every byte which `route` may have read, from a chunk's owner or from one of `owners` that mirrors it, lies within what that one
/// has shown. An internal error that names the owner.
Status check_owners(const Route& route, std::span<const PullOwner> owners);

/// World ranks of all of these, for Session::connect.
std::vector<int> world_ranks(const std::vector<std::vector<ServedConsumer>>& consumers);
std::vector<int> world_ranks(const std::vector<PullOwner>& owners);

}  // namespace sluice

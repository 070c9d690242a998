#include "runtime/exchange/flow_setup.h"

#include "runtime/base/units.h"
#include "runtime/services/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace sluice {

RemoteRegion remote_region(const transport::MemoryRegion& region, std::optional<SharedMemoryHandle> shared,
                           std::vector<std::byte> shared_device) {
    return {reinterpret_cast<std::uint64_t>(region.data()), region.size(), region.packed_key(), shared,
            std::move(shared_device)};
}

Result<bool> device_memory(const Session& session, std::span<const StatedMemory> memory) {
    const auto on_device = std::count_if(memory.begin(), memory.end(),
                                         [](const StatedMemory& block) { return block.kind == MemoryKind::kCuda; });
    if (on_device == 0) {
        return false;
    }
    if (session.device() == nullptr) {
        return invalid_argument("weights are in GPU memory, but the session was opened without a device");
    }
    if (static_cast<std::size_t>(on_device) != memory.size()) {
        return invalid_argument(
            fmt::format("{} of {} blocks of weights are in GPU memory; have all of a rank's in one kind", on_device,
                        memory.size()));
    }
    for (const StatedMemory& block : memory) {
        SLUICE_RETURN_IF_ERROR(session.device()->check_address(block.data));
    }
    return true;
}

bool exportable(const Session& session, std::span<const StatedMemory> memory) {
    for (const StatedMemory& block : memory) {
        if (const auto handle = session.device()->share(block.data); !handle.ok()) {
            log::warning("weights go through host memory, much slower than over NVLink or RDMA: {}",
                         handle.status().message());
            return false;
        }
    }
    return true;
}

std::string mappable_identity(const Session& session, bool device_memory) {
    return !session.settings().mapped ? std::string() : device_memory ? device_host_identity() : host_identity();
}

Status check_staging(const Route& route, std::int64_t staging_bytes) {
    for (const Chunk& chunk : route.chunks) {
        if (chunk.wire_bytes > staging_bytes) {
            return invalid_argument(
                fmt::format("a chunk of group {} has {} bytes and staging {}; raise "
                            "SLUICE_STAGING_BYTES or lower SLUICE_CHUNK_BYTES",
                            chunk.group, chunk.wire_bytes, staging_bytes));
        }
    }
    return ok_status();
}

std::vector<std::vector<ServedConsumer>> served_consumers(const Session& session, const OwnerRoute& route,
                                                          std::span<const int> world_ranks) {
    std::vector<std::vector<ServedConsumer>> out;
    for (const ServedDemand& demand : route.demands) {
        std::vector<ServedConsumer>& consumers = out.emplace_back();
        for (const int worker : demand.workers) {
            const int world_rank = world_ranks[static_cast<std::size_t>(worker)];
            const bool shares_gpu = session.device() != nullptr && !session.plan().staged &&
                                    session.card(world_rank).device_uuid == session.device()->uuid();
            consumers.push_back({world_rank, session.name_of(world_rank), shares_gpu});
        }
    }
    return out;
}

namespace {

// That every byte the chunk reads lies within what its owner has shown.
Status check_reads(const Chunk& chunk, const PullOwner& owner) {
    const RemoteMemory& memory = owner.memory;
    const auto refuse = [&](const char* what) {
        return internal_error(
            fmt::format("{} has not shown the {} that group {} is read from", owner.name, what, chunk.group));
    };
    if (chunk.path == Path::kPacked) {
        return memory.slot_bytes < static_cast<std::uint64_t>(chunk.wire_bytes) ||
                       memory.slots.bytes < memory.slot_bytes || memory.slots.key.empty()
                   ? refuse("serve slots")
                   : ok_status();
    }
    const auto readable = [&](const RemoteRegion& region, std::int64_t end) {
        return static_cast<std::uint64_t>(end) <= region.bytes && (chunk.path == Path::kMapped || !region.key.empty());
    };
    for (const Piece& piece : chunk.pieces) {
        std::int64_t end = piece.copy.src_offset + piece.copy.item;
        for (std::size_t d = 0; d < piece.copy.sizes.size(); ++d) {
            end += (piece.copy.sizes[d] - 1) * piece.copy.src_strides[d];
        }
        if (piece.segment == kGatheredSegment) {
            for (const RemoteRegion& buffer : memory.gather_buffers) {
                if (!readable(buffer, end)) {
                    return refuse("gather buffer");
                }
            }
            if (memory.gather_buffers.empty()) {
                return refuse("gather buffer");
            }
        } else if (static_cast<std::size_t>(piece.segment) >= memory.segments.size() ||
                   !readable(memory.segments[static_cast<std::size_t>(piece.segment)], end)) {
            return refuse("segment");
        }
    }
    return ok_status();
}

Result<Buffer> map_region(const RemoteRegion& region, Device* device) {
    const auto size = static_cast<std::int64_t>(region.bytes);
    if (device != nullptr && !region.shared_device.empty()) {
        auto mapped = device->map(region.shared_device, size);
        if (!mapped.ok()) {
            return Status(mapped.status().code(),
                          fmt::format("cannot map {} of its GPU memory: {}; set SLUICE_MAPPED=off to read it by "
                                      "transport, or use --staged",
                                      format_bytes(size), mapped.status().message()));
        }
        return mapped;
    }
    if (device == nullptr && region.shared) {
        return map_shared_memory(*region.shared, size);
    }
    return internal_error("its memory is planned to be mapped, but it does not say how");
}

// Maps all that the owner shows.
Status map_memory(PullOwner& owner, Device* device) {
    const auto map_all = [&owner, device](const std::vector<RemoteRegion>& regions,
                                          std::vector<const std::byte*>& view) -> Status {
        for (const RemoteRegion& region : regions) {
            view.push_back(nullptr);
            if (region.bytes == 0) {
                continue;
            }
            SLUICE_ASSIGN_OR_RETURN(Buffer mapping, map_region(region, device));
            view.back() = mapping.data();
            owner.view.mappings.push_back(std::move(mapping));
        }
        return ok_status();
    };
    SLUICE_RETURN_IF_ERROR(map_all(owner.memory.segments, owner.view.segments));
    return map_all(owner.memory.gather_buffers, owner.view.gather_buffers);
}

}  // namespace

Result<std::vector<PullOwner>> pull_owners(const Session& session, const Route& route, FlowId flow, int own_world_rank,
                                           std::span<const std::byte* const> own_segments) {
    std::set<int> ranks;
    for (const Chunk& chunk : route.chunks) {
        ranks.insert(chunk.owner);
    }
    std::vector<PullOwner> owners;
    for (const int rank : ranks) {
        PullOwner& owner = owners.emplace_back();
        owner.trainer_rank = rank;
        owner.world_rank = session.plan().trainers[static_cast<std::size_t>(rank)];
        owner.name = session.name_of(owner.world_rank);
        owner.memory = session.card(owner.world_rank).flows[static_cast<std::size_t>(flow)];
        if (owner.world_rank == own_world_rank) {
            owner.self = true;
            owner.view.segments.assign(own_segments.begin(), own_segments.end());
        }
    }
    SLUICE_RETURN_IF_ERROR(check_owners(route, owners));
    for (const Chunk& chunk : route.chunks) {
        const auto owner = std::find_if(owners.begin(), owners.end(),
                                        [&](const PullOwner& o) { return o.trainer_rank == chunk.owner; });
        if (!owner->self && chunk.path == Path::kMapped && owner->view.mappings.empty()) {
            SLUICE_RETURN_IF_ERROR(map_memory(*owner, session.device()).with_context(owner->name));
        }
    }
    return owners;
}

Status check_owners(const Route& route, std::span<const PullOwner> owners) {
    for (const Chunk& chunk : route.chunks) {
        for (const PullOwner& owner : owners) {
            // A chunk that waits at its owner is read from another that mirrors it.
            const bool mirrors = chunk.path != Path::kPacked && std::find(chunk.mirrors.begin(), chunk.mirrors.end(),
                                                                          owner.trainer_rank) != chunk.mirrors.end();
            if (!owner.self && (owner.trainer_rank == chunk.owner || mirrors)) {
                SLUICE_RETURN_IF_ERROR(check_reads(chunk, owner));
            }
        }
    }
    return ok_status();
}

std::vector<int> world_ranks(const std::vector<std::vector<ServedConsumer>>& consumers) {
    std::vector<int> ranks;
    for (const auto& of_demand : consumers) {
        for (const ServedConsumer& consumer : of_demand) {
            ranks.push_back(consumer.world_rank);
        }
    }
    return ranks;
}

std::vector<int> world_ranks(const std::vector<PullOwner>& owners) {
    std::vector<int> ranks;
    for (const PullOwner& owner : owners) {
        ranks.push_back(owner.world_rank);
    }
    return ranks;
}

}  // namespace sluice

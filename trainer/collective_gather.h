#pragma once

#include "planner/ids.h"
#include "planner/plan.h"
#include "runtime/base/status.h"
#include "runtime/exchange/device_chunks.h"
#include "runtime/services/buffer.h"
#include "runtime/services/collective_group.h"
#include "runtime/services/deadline.h"
#include "runtime/services/device.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sluice {

/// Gathers groups by a CollectiveGroup of all trainer ranks: an all-gather of parts that are unequal and strided, as the gather's routes say. A part
/// that is one run travels from the shard itself, or lands in the group's buffer itself; others are packed before, or scattered after.
///
/// Threads: one at a time. Lifetimes: device and group outlive it.
class CollectiveGather {
public:
    /// `lane` of the device is used by nobody else meanwhile. `pulled` and `served` are this rank's routes, `segments` its shards in the
    /// device's memory; `order` has all groups.
    static Result<CollectiveGather> create(Device& device, int lane, CollectiveGroup& group, const Route& pulled,
                                           const OwnerRoute& served, const SegmentBases& segments,
                                           const std::vector<GroupId>& order);

    // Exchanges are collective. Peers may gather groups that this rank does not: of those it sends its parts, in the one order of all groups.

    /// A version begins.
    void begin() { next_ = 0; }
    /// Fills `buffer` with the group's gathered parts, after all that it sends of groups before this one. Groups come in their order.
    Status gather(GroupId group, std::byte* buffer, Deadline deadline);
    /// After the last group: sends what is left. When it returns, the own shards are read by nobody any more.
    Status finish(Deadline deadline);

    /// Device memory for parts on their way.
    [[nodiscard]] std::int64_t bytes() const;

private:
    /// A chunk that goes to a peer.
    struct Sent {
        int peer = 0;
        std::int64_t bytes = 0;
        std::byte* shard = nullptr;  ///< Sent from there, or
        ChunkProgram pack;           ///< packed into the memory for it,
        std::int64_t offset = 0;     ///< there.
    };
    /// One that comes from a peer.
    struct Received {
        int peer = 0;
        std::int64_t bytes = 0;
        std::int64_t offset = 0;  ///< In the group's buffer, or, with a program, in the memory for what is scattered.
        ChunkProgram scatter;
    };
    struct Parts {
        std::vector<Sent> sent;
        std::vector<Received> received;
        std::vector<ChunkProgram> own;  ///< Copies of the own shards.
    };

    CollectiveGather(Device& device, int lane, CollectiveGroup& group)
        : device_(&device), lane_(lane), group_(&group) {}
    Status send_until(std::size_t place, Deadline deadline);
    Status exchange(const Parts& parts, std::byte* buffer, Deadline deadline);
    Status add_sent(const ServedDemand& demand, const SegmentBases& segments, std::vector<std::int64_t>& packed);
    Status add_received(const Chunk& chunk, const SegmentBases& segments, std::vector<std::int64_t>& scattered);

    Device* device_;
    int lane_;
    CollectiveGroup* group_;
    std::vector<Parts> parts_;        // in the order of the groups
    std::vector<std::size_t> place_;  // of each group in it
    std::size_t next_ = 0;            // of this version's exchanges
    std::optional<Buffer> packed_, scattered_;
    std::vector<CollectiveGroup::Transfer> sends_, receives_;  // of the exchange that runs
};

}  // namespace sluice

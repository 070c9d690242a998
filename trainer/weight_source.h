#pragma once

#include "planner/ids.h"
#include "runtime/base/memory_kind.h"
#include "runtime/base/status.h"
#include "runtime/exchange/rank_plan.h"
#include "runtime/exchange/session.h"
#include "runtime/services/deadline.h"
#include "runtime/services/shared_memory.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sluice {

/// Where a trainer's weights come from. A source says what memory stays readable (its segments) and, if it gathers, fills a buffer
/// with a group on demand. Its calls come on the thread that calls Trainer::sync, one at a time.
class WeightSource {
public:
    struct Segment {
        std::byte* data = nullptr;
        std::int64_t bytes = 0;
        MemoryKind kind = MemoryKind::kHost;
        /// When workers of the same host can map it, and `data` is its first byte.
        std::optional<SharedMemoryHandle> shared = {};
    };

    virtual ~WeightSource() = default;

    /// By SegmentId, as the trainer's Ownership counts them. Must stay valid and at its place as long as the Trainer lives. During a sync
    /// it must not be written: that is the lease.
    [[nodiscard]] virtual std::span<const Segment> segments() const = 0;

    /// True when groups have to be gathered before they can be published; then they are published one by one, under the credit.
    [[nodiscard]] virtual bool gathers() const = 0;
    /// Bytes of the largest group buffer; 0 when nothing is gathered.
    [[nodiscard]] virtual std::int64_t largest_group_bytes() const { return 0; }
    /// Memory that it took at set-up for bytes on their way, beside the group buffers.
    [[nodiscard]] virtual std::int64_t transit_bytes() const { return 0; }
    /// Fills `buffer` with the gathered parts of `group` at their offsets. Called for each group that this rank publishes, in the one
    /// group order; the other ranks that take part in gathering a group come to it in the same order.
    /// When it returns the bytes are in memory: of what it launches on a GPU it waits for the end.
    virtual Status gather(std::uint64_t version, GroupId group, std::span<std::byte> buffer, Deadline deadline) = 0;

    // A source that moves bytes over the session itself takes part in its set-up; others leave these as they are.

    /// Adds what it wants planned.
    virtual void add_to(RankInput& /*input*/) const {}
    /// Registers its memory and shows it. `segments` are the trainer's registrations of segments(), `buffers` those of the gather buffers.
    virtual Status prepare(Session& /*session*/, const RankPlan& /*plan*/, std::span<const RemoteRegion> /*segments*/,
                           std::span<const transport::MemoryRegion* const> /*buffers*/, MemoryCard& /*card*/) {
        return ok_status();
    }
    /// World ranks that it needs links to.
    [[nodiscard]] virtual std::vector<int> peers(const RankPlan& /*plan*/) const { return {}; }
    /// Links are there.
    virtual Status start(Session& /*session*/) { return ok_status(); }
    /// A version begins.
    virtual Status begin(std::uint64_t /*version*/) { return ok_status(); }
    /// All of it was gathered and served: returns when no other rank reads segments() any more.
    virtual Status end(Deadline /*deadline*/) { return ok_status(); }
    /// It has failed, here (before end() or in it) or elsewhere: returns when nothing of it is in flight any more.
    virtual void stop() {}
    /// The verdict on the version, the same on every rank; after end() or stop().
    virtual void decided(bool /*committed*/) {}
    /// On the event loop: the version has failed somewhere; waits of gather() and end() must end.
    virtual void abort(const Status& /*cause*/) {}
    /// On the event loop, before the links close: gives remote keys back.
    virtual void close() {}
    /// On the event loop, when the links are closed: whatever belongs to the session ends here. The source itself may outlive it.
    virtual void release() {}
};

}  // namespace sluice

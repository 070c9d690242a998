#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// What a traced span or instant is.
enum class TraceName : std::uint8_t {
    // On the caller's lane.
    kVersion,      ///< A whole sync of this rank.
    kGather,       ///< A trainer materialises a group.
    kReleaseWait,  ///< A trainer waits for a group to be released; `peer` is whom it waited for last.
    kLeaseWait,    ///< A gathering trainer waits until its peers have read its shards.
    kHook,
    kBeforeCommit,
    kCommit,  ///< Waits for the verdict of all ranks.
    // On the transport thread's lane.
    kPublished,  ///< Instant.
    kReleased,   ///< Instant: by every consumer.
    kLanded,     ///< Instant: all chunks of the group are here and right.
    // On the copy threads' lanes.
    kPack,
    kHash,
    kScatter,
    kVerify,
    kCopy,  ///< Out of mapped memory, or of this rank's own.
    // On the lane of a link.
    kRead,  ///< A chunk, from its first get to its last, or the copy of a mapped one.
    kHeld,  ///< A group, from the word that it is readable to the consumer's release.
    // On the lane of a link from which something is still to be read and nothing is in flight: what it waits for.
    kStallPublish,
    kStallTurn,   ///< The group's buffer: a gathering trainer has not come to it.
    kStallLayer,  ///< The group's layer buffer: hooks of the layer before have not ended.
    kStallPacked,
    kStallStaging,
    kStallWindow,
    kStallSlowWorker,   ///< --slow-worker.
    kStallSlowOwner,    ///< --slow-owner.
    kStallNothingLeft,  ///< All of this link was read, other links are still at work.
};
inline constexpr TraceName kLastTraceName = TraceName::kStallNothingLeft;

/// As a trace viewer shows it: "read", "stall: publish".
std::string_view to_string(TraceName name);
[[nodiscard]] constexpr bool is_instant(TraceName name) {
    return name >= TraceName::kPublished && name <= TraceName::kLanded;
}
[[nodiscard]] constexpr bool is_stall(TraceName name) { return name >= TraceName::kStallPublish; }

/// One span (or instant, then begin == end) of one lane. Times are nanoseconds of the steady clock. -1: does not apply.
struct TraceEvent {
    TraceName name = TraceName::kVersion;
    std::uint16_t lane = 0;
    std::uint64_t version = 0;
    std::int32_t group = -1;
    std::int32_t chunk = -1;
    std::int32_t peer = -1;  ///< World rank.
    std::int64_t bytes = -1;
    std::int64_t begin = 0;
    std::int64_t end = 0;

    friend bool operator==(const TraceEvent&, const TraceEvent&) = default;
};

struct TraceLane {
    std::string name;
    bool link = false;  ///< Of a link: its spans may overlap. Those of a thread nest.

    friend bool operator==(const TraceLane&, const TraceLane&) = default;
};

/// What one rank has recorded, in a form that travels.
struct TraceLog {
    std::vector<TraceLane> lanes;
    std::vector<TraceEvent> events;
    std::uint64_t left_out = 0;    ///< Events for which there was no room.
    std::int64_t wall_offset = 0;  ///< Nanoseconds to add to a time to get the system clock's, taken once.

    friend bool operator==(const TraceLog&, const TraceLog&) = default;
};

/// Collects trace events of one process in memory that is set aside at the start. Recording is for any thread, takes no
/// lock and allocates nothing; what no longer fits is counted. Whoever records has a pointer to it that is null when nothing
/// is traced, so that a run without a trace pays for one branch.
class TraceRecorder {
public:
    using Clock = std::chrono::steady_clock;

    static constexpr std::uint16_t kCallerLane = 0;
    static constexpr std::uint16_t kTransportLane = 1;
    [[nodiscard]] static constexpr std::uint16_t copy_lane(int copy_thread) {
        return static_cast<std::uint16_t>(2 + copy_thread);  // CopyJob::kLoop, -1, is the transport thread.
    }

    /// Room for `most_events`; lanes for the caller, the transport thread and `copy_threads` copy threads.
    TraceRecorder(std::size_t most_events, int copy_threads);

    /// Set-up only (allocates); any thread.
    std::uint16_t add_link(std::string name);

    /// `event` says everything but the times.
    void span(TraceEvent event, Clock::time_point begin, Clock::time_point end) noexcept;
    void instant(TraceEvent event) noexcept {
        const Clock::time_point now = Clock::now();
        span(event, now, now);
    }

    /// What was recorded up to now, in the order of recording.
    [[nodiscard]] TraceLog log() const;

private:
    // An event may be looked at once `written` is set: its writer may still be at work when log() comes by.
    struct Slot {
        TraceEvent event;
        std::atomic<bool> written{false};
    };

    std::size_t most_events_;
    std::unique_ptr<Slot[]> slots_;
    std::atomic<std::size_t> used_{0};
    std::atomic<std::uint64_t> left_out_{0};
    std::int64_t wall_offset_ = 0;
    mutable std::mutex lanes_mutex_;
    std::vector<TraceLane> lanes_;
};

}  // namespace sluice

#pragma once

#include "runtime/services/event_loop.h"
#include "runtime/services/trace.h"

#include <cstdint>

namespace sluice {

/// How long at least one of several overlapping operations was in flight.
class BusyTime {
public:
    using Clock = EventLoop::Clock;

    void reset() { *this = {}; }
    void begin() {
        if (in_flight_++ == 0) {
            since_ = Clock::now();
        }
    }
    void end(Clock::time_point now) {
        if (--in_flight_ == 0 && now > since_) {
            total_ += now - since_;
        }
    }
    [[nodiscard]] bool idle() const { return in_flight_ == 0; }
    /// When what is in flight now began.
    [[nodiscard]] Clock::time_point since() const { return since_; }
    [[nodiscard]] Clock::duration total() const { return total_; }
    /// With what is in flight now.
    [[nodiscard]] Clock::duration total(Clock::time_point now) const {
        return idle() ? total_ : total_ + (now - since_);
    }

private:
    int in_flight_ = 0;
    Clock::time_point since_{};
    Clock::duration total_{};
};

/// The time that a link has nothing in flight although something is still to be read, cut by what it waits for. Does nothing
/// without a recorder.
class StallClock {
public:
    using Clock = EventLoop::Clock;

    /// What a link waits for; group and chunk where they say more.
    struct Cause {
        TraceName name = TraceName::kStallNothingLeft;
        std::int32_t group = -1;
        std::int32_t chunk = -1;
        friend bool operator==(const Cause&, const Cause&) = default;
    };

    void trace_to(TraceRecorder* recorder, std::uint16_t lane) {
        recorder_ = recorder;
        lane_ = lane;
    }
    [[nodiscard]] bool traced() const { return recorder_ != nullptr; }
    [[nodiscard]] std::uint16_t lane() const { return lane_; }

    /// A version begins: the link is idle.
    void start(std::uint64_t version, Clock::time_point now) {
        version_ = version;
        idle_since_ = now;
        stalled_ = false;
    }
    /// The last read in flight has ended. Whether that makes a stall is known when nothing could be put in its place.
    void idle(Clock::time_point now) { idle_since_ = now; }
    /// Nothing could be put in flight, because of `cause`.
    void waits_for(const Cause& cause);
    /// Something is in flight again, or the version is over.
    void resume();

private:
    void record(Clock::time_point end) const;

    TraceRecorder* recorder_ = nullptr;
    std::uint16_t lane_ = 0;
    std::uint64_t version_ = 0;
    Clock::time_point idle_since_{};  // or since when the cause is the present one
    bool stalled_ = false;
    Cause cause_;
};

}  // namespace sluice

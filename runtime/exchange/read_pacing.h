#pragma once

#include "runtime/services/event_loop.h"

#include <chrono>

namespace sluice {

/// For tests and measurements: a worker that waits for a while after each chunk that it has started to read.
class SlowWorker {
public:
    using Clock = EventLoop::Clock;

    explicit SlowWorker(Clock::duration delay) : delay_(delay) {}
    void reset(Clock::time_point now) { not_before_ = now; }
    void chunk_started(Clock::time_point now) { not_before_ = now + delay_; }
    [[nodiscard]] bool slow() const { return delay_.count() > 0; }
    [[nodiscard]] Clock::time_point not_before() const { return not_before_; }

private:
    Clock::duration delay_;
    Clock::time_point not_before_{};
};

/// For tests and measurements: an owner that is read from at a share of its speed. It rests after a chunk for as long as that share says.
class SlowOwner {
public:
    using Clock = EventLoop::Clock;

    explicit SlowOwner(int percent) : percent_(percent) {}
    void reset(Clock::time_point now) { not_before_ = now; }
    void chunk_started() {
        if (slow()) {
            not_before_ = Clock::time_point::max();  // until it has been read
        }
    }
    void chunk_read(Clock::time_point started, Clock::time_point now) {
        if (slow()) {
            not_before_ = now + (now - started) * (100 - percent_) / percent_;
        }
    }
    [[nodiscard]] bool slow() const { return percent_ < 100; }
    [[nodiscard]] Clock::time_point not_before() const { return not_before_; }

private:
    int percent_;
    Clock::time_point not_before_{};
};

}  // namespace sluice

#pragma once

#include <algorithm>
#include <chrono>

namespace sluice {

/// The moment by which a wait must have ended. A value; made once at the start of an operation and handed down, so that
/// several waits in a row share one limit.
class Deadline {
public:
    using Clock = std::chrono::steady_clock;

    /// A span too long for the clock means never. A negative one has passed already.
    static Deadline after(Clock::duration span) {
        const Clock::time_point now = Clock::now();
        return Deadline(span > Clock::time_point::max() - now ? Clock::time_point::max() : now + span);
    }
    static Deadline at(Clock::time_point when) { return Deadline(when); }
    static Deadline never() { return Deadline(Clock::time_point::max()); }

    /// For wait_until of a condition variable.
    [[nodiscard]] Clock::time_point when() const { return when_; }
    [[nodiscard]] bool is_never() const { return when_ == Clock::time_point::max(); }
    [[nodiscard]] bool passed() const { return !is_never() && Clock::now() >= when_; }
    /// Time left, zero once passed; the longest duration for never.
    [[nodiscard]] Clock::duration remaining() const {
        return is_never() ? Clock::duration::max() : std::max(when_ - Clock::now(), Clock::duration::zero());
    }

    friend auto operator<=>(const Deadline&, const Deadline&) = default;

private:
    explicit Deadline(Clock::time_point when) : when_(when) {}
    Clock::time_point when_;
};

}  // namespace sluice

#include "runtime/exchange/read_activity.h"

namespace sluice {

void StallClock::waits_for(const Cause& cause) {
    if (stalled_ && cause == cause_) {
        return;
    }
    if (stalled_) {
        const Clock::time_point now = Clock::now();
        record(now);
        idle_since_ = now;
    }
    stalled_ = true;
    cause_ = cause;
}

void StallClock::resume() {
    if (stalled_) {
        record(Clock::now());
        stalled_ = false;
    }
}

void StallClock::record(Clock::time_point end) const {
    recorder_->span(
        {.name = cause_.name, .lane = lane_, .version = version_, .group = cause_.group, .chunk = cause_.chunk},
        idle_since_, end);
}

}  // namespace sluice

#include "runtime/exchange/read_activity.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using Clock = EventLoop::Clock;

TEST(BusyTimeTest, CountsOverlapOnce) {
    BusyTime busy;
    EXPECT_TRUE(busy.idle());
    busy.begin();
    const Clock::time_point since = busy.since();
    busy.begin();
    busy.end(since + std::chrono::seconds(2));
    EXPECT_FALSE(busy.idle());
    EXPECT_EQ(busy.total(), Clock::duration::zero());
    busy.end(since + std::chrono::seconds(3));
    EXPECT_TRUE(busy.idle());
    EXPECT_EQ(busy.total(), std::chrono::seconds(3));
    busy.begin();
    busy.end(busy.since() + std::chrono::seconds(1));
    EXPECT_EQ(busy.total(), std::chrono::seconds(4));
    busy.reset();
    EXPECT_EQ(busy.total(), Clock::duration::zero());
}

TEST(StallClockTest, CutsByCauseAndLeavesNoGap) {
    TraceRecorder recorder(10, 1);
    StallClock stall;
    stall.trace_to(&recorder, recorder.add_link("reads from trainer 0"));
    const Clock::time_point start = Clock::now();
    stall.start(3, start);
    stall.waits_for({TraceName::kStallPublish, 1});
    stall.waits_for({TraceName::kStallPublish, 1});
    stall.waits_for({TraceName::kStallPublish, 2});
    stall.waits_for({TraceName::kStallPacked, 2});
    stall.resume();
    stall.resume();
    const TraceLog log = recorder.log();
    ASSERT_EQ(log.events.size(), 3U);
    EXPECT_EQ(log.events[0].name, TraceName::kStallPublish);
    EXPECT_EQ(log.events[0].group, 1);
    EXPECT_EQ(log.events[0].version, 3U);
    EXPECT_EQ(log.events[0].begin, std::chrono::nanoseconds(start.time_since_epoch()).count());
    EXPECT_EQ(log.events[1].group, 2);
    EXPECT_EQ(log.events[1].begin, log.events[0].end);
    EXPECT_EQ(log.events[2].name, TraceName::kStallPacked);
    EXPECT_EQ(log.events[2].begin, log.events[1].end);
}

TEST(StallClockTest, ReplacedAtOnceIsNoStall) {
    TraceRecorder recorder(10, 1);
    StallClock stall;
    stall.trace_to(&recorder, recorder.add_link("reads from trainer 0"));
    stall.start(1, Clock::now());
    stall.resume();
    stall.idle(Clock::now());
    stall.resume();
    EXPECT_TRUE(recorder.log().events.empty());
    const Clock::time_point idle = Clock::now();
    stall.idle(idle);
    stall.waits_for({TraceName::kStallStaging, 1, 2});
    stall.resume();
    const TraceLog log = recorder.log();
    ASSERT_EQ(log.events.size(), 1U);
    EXPECT_EQ(log.events[0].chunk, 2);
    EXPECT_EQ(log.events[0].begin, std::chrono::nanoseconds(idle.time_since_epoch()).count());
}

}  // namespace
}  // namespace sluice

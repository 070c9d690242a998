#include "runtime/services/trace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>
#include <vector>

namespace sluice {
namespace {

using Clock = TraceRecorder::Clock;

TEST(TraceTest, KeepsWhatItIsTold) {
    TraceRecorder recorder(4, 2);
    const std::uint16_t link = recorder.add_link("reads from trainer 0");
    const Clock::time_point begin = Clock::now();
    const TraceEvent read{.name = TraceName::kRead, .lane = link, .version = 2, .group = 3, .chunk = 4, .bytes = 5};
    recorder.span(read, begin, begin + std::chrono::microseconds(7));
    recorder.instant({.name = TraceName::kLanded, .lane = TraceRecorder::kTransportLane, .version = 2, .group = 3});

    const TraceLog log = recorder.log();
    ASSERT_EQ(log.lanes.size(), 5U);
    EXPECT_EQ(log.lanes[TraceRecorder::kCallerLane].name, "caller");
    EXPECT_EQ(log.lanes[TraceRecorder::kTransportLane].name, "transport");
    EXPECT_EQ(log.lanes[TraceRecorder::copy_lane(1)].name, "copy 1");
    EXPECT_EQ(log.lanes[link], (TraceLane{"reads from trainer 0", true}));
    ASSERT_EQ(log.events.size(), 2U);
    TraceEvent expected = read;
    expected.begin = std::chrono::nanoseconds(begin.time_since_epoch()).count();
    expected.end = expected.begin + 7000;
    EXPECT_EQ(log.events[0], expected);
    EXPECT_EQ(log.events[1].begin, log.events[1].end);
    EXPECT_GE(log.events[1].begin, expected.begin);
    EXPECT_EQ(log.left_out, 0U);
}

TEST(TraceTest, OffsetLeadsToTheSystemClock) {
    const TraceRecorder recorder(1, 1);
    const auto ns = [](auto time) { return std::chrono::nanoseconds(time.time_since_epoch()).count(); };
    const std::int64_t wall = ns(Clock::now()) + recorder.log().wall_offset;
    EXPECT_LT(std::abs(wall - ns(std::chrono::system_clock::now())), 1'000'000'000);
}

TEST(TraceTest, WhatDoesNotFitIsCounted) {
    TraceRecorder recorder(3, 1);
    for (int i = 0; i < 10; ++i) {
        recorder.instant({.name = TraceName::kPublished, .lane = TraceRecorder::kTransportLane, .group = i});
    }
    const TraceLog log = recorder.log();
    ASSERT_EQ(log.events.size(), 3U);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(log.events[static_cast<std::size_t>(i)].group, i);
    }
    EXPECT_EQ(log.left_out, 7U);
}

TEST(TraceTest, ThreadsRecordWhileOthersLook) {
    constexpr int kThreads = 4;
    constexpr int kEach = 2000;
    constexpr std::size_t kRoom = 5000;
    TraceRecorder recorder(kRoom, kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&recorder, t] {
            for (int i = 0; i < kEach; ++i) {
                recorder.instant({.name = TraceName::kPublished,
                                  .lane = TraceRecorder::copy_lane(t),
                                  .version = static_cast<std::uint64_t>(i),
                                  .group = t,
                                  .chunk = i});
            }
        });
    }
    const auto check = [&](const TraceLog& log) {
        std::set<std::pair<int, int>> seen;
        for (const TraceEvent& event : log.events) {
            EXPECT_EQ(event.lane, TraceRecorder::copy_lane(event.group));
            EXPECT_EQ(event.version, static_cast<std::uint64_t>(event.chunk));
            EXPECT_TRUE(seen.emplace(event.group, event.chunk).second);
        }
    };
    for (int i = 0; i < 5; ++i) {
        check(recorder.log());  // half-written events are not among them
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    const TraceLog log = recorder.log();
    check(log);
    EXPECT_EQ(log.events.size(), kRoom);
    EXPECT_EQ(log.left_out, kThreads * kEach - kRoom);
}

TEST(TraceTest, EveryNameReads) {
    std::set<std::string_view> names;
    for (int i = 0; i <= static_cast<int>(kLastTraceName); ++i) {
        const auto name = static_cast<TraceName>(i);
        EXPECT_NE(to_string(name), "unknown");
        EXPECT_TRUE(names.insert(to_string(name)).second) << to_string(name);
        EXPECT_EQ(is_stall(name), to_string(name).starts_with("stall: "));
    }
}

}  // namespace
}  // namespace sluice

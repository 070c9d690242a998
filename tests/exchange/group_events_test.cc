#include "runtime/exchange/group_events.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace sluice {
namespace {

using namespace std::chrono_literals;

TEST(GroupEventsTest, KeepsTheOrderAndCountsEachGroupOnce) {
    GroupEvents events(4);
    events.group_done(2);
    events.group_done(0);
    events.group_done(2);
    const GroupEvents::State state = events.wait(1, Deadline::after(0ms));
    EXPECT_EQ(state.groups_done, 2u);
    EXPECT_FALSE(state.over);
    EXPECT_EQ(events.order_of(0), 2);
    EXPECT_EQ(events.order_of(1), 0);
}

TEST(GroupEventsTest, TheFirstOutcomeCountsUntilReset) {
    GroupEvents events(2);
    events.group_done(1);
    events.finish(internal_error("first"));
    events.finish(ok_status());
    EXPECT_TRUE(events.wait_over(Deadline::after(0ms)));
    EXPECT_EQ(events.outcome().message(), "first");
    events.reset();
    EXPECT_FALSE(events.wait_over(Deadline::after(1ms)));
    EXPECT_EQ(events.wait(0, Deadline::after(1ms)).groups_done, 0u);
    EXPECT_TRUE(events.outcome().ok());
    events.group_done(1);
    EXPECT_EQ(events.order_of(0), 1);
}

TEST(GroupEventsTest, WaitsRunIntoTheirDeadline) {
    GroupEvents events(1);
    EXPECT_FALSE(events.wait_over(Deadline::after(2ms)));
    EXPECT_FALSE(events.wait_group(0, Deadline::after(2ms)));
    const GroupEvents::State state = events.wait(0, Deadline::after(2ms));
    EXPECT_EQ(state.groups_done, 0u);
    EXPECT_FALSE(state.over);
}

TEST(GroupEventsTest, TheEndOfTheVersionEndsAWaitForAGroup) {
    GroupEvents events(2);
    std::thread other([&] { events.finish(internal_error("over")); });
    EXPECT_TRUE(events.wait_group(1, Deadline::after(10s)));
    EXPECT_EQ(events.outcome().message(), "over");
    other.join();
}

TEST(GroupEventsTest, AWaiterSeesEveryGroupOfAnotherThread) {
    constexpr int kGroups = 1000;
    GroupEvents events(kGroups);
    std::thread other([&] {
        for (GroupId group = kGroups; group-- > 0;) {
            events.group_done(group);
        }
        events.finish(ok_status());
    });
    std::vector<GroupId> seen;
    while (true) {
        const GroupEvents::State state = events.wait(seen.size(), Deadline::after(10s));
        ASSERT_TRUE(state.over || state.groups_done > seen.size());
        while (seen.size() < state.groups_done) {
            seen.push_back(events.order_of(seen.size()));
        }
        if (state.over && seen.size() == state.groups_done) {
            break;
        }
    }
    other.join();
    ASSERT_EQ(seen.size(), static_cast<std::size_t>(kGroups));
    for (GroupId i = 0; i < kGroups; ++i) {
        EXPECT_EQ(seen[static_cast<std::size_t>(i)], kGroups - 1 - i);
    }
}

}  // namespace
}  // namespace sluice

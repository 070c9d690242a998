#include "runtime/services/deadline.h"

#include <gtest/gtest.h>

#include <thread>

namespace sluice {
namespace {

using namespace std::chrono_literals;

TEST(DeadlineTest, PassesAfterItsSpan) {
    const Deadline deadline = Deadline::after(20ms);
    EXPECT_FALSE(deadline.passed());
    EXPECT_GT(deadline.remaining(), 0ms);
    EXPECT_LE(deadline.remaining(), 20ms);
    std::this_thread::sleep_until(deadline.when());
    EXPECT_TRUE(deadline.passed());
    EXPECT_EQ(deadline.remaining(), Deadline::Clock::duration::zero());
}

TEST(DeadlineTest, ThePastHasPassed) {
    EXPECT_TRUE(Deadline::after(0ms).passed());
    EXPECT_TRUE(Deadline::after(-1h).passed());
    EXPECT_EQ(Deadline::after(-1h).remaining(), Deadline::Clock::duration::zero());
}

TEST(DeadlineTest, NeverIsLaterThanAll) {
    const Deadline never = Deadline::never();
    EXPECT_TRUE(never.is_never());
    EXPECT_FALSE(never.passed());
    EXPECT_EQ(never.remaining(), Deadline::Clock::duration::max());
    EXPECT_TRUE(Deadline::after(Deadline::Clock::duration::max()).is_never());
    EXPECT_LT(Deadline::after(1h), never);
    EXPECT_EQ(std::min(Deadline::at(Deadline::Clock::time_point(5s)), never).when(), Deadline::Clock::time_point(5s));
}

}  // namespace
}  // namespace sluice

#pragma once

#include <gtest/gtest.h>

#include <chrono>

namespace sluice::test {

/// Ends a test program that runs longer than its limit: says on stderr which test was running, for how long, and what
/// each thread was waiting in, then aborts. Works by a timer signal (SIGALRM) and so needs no thread: tests may fork.
/// Forked children inherit no timer; ForkedPeers has a deadline of its own.
class Watchdog : public testing::EmptyTestEventListener {
public:
    /// `limit`: for all tests of the program together, from now on.
    explicit Watchdog(std::chrono::seconds limit);

    void OnTestStart(const testing::TestInfo& test) override;
    void OnTestEnd(const testing::TestInfo& test) override;
    void OnTestProgramEnd(const testing::UnitTest& unit_test) override;
};

}  // namespace sluice::test

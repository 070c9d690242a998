#include "tests/support/log_guard.h"

#include "tests/support/run_failing_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::test {
namespace {

using testing::HasSubstr;

TEST(LogGuard, AnUnexpectedWarningFailsTheTest) {
    const ProgramResult result = run_failing_program("--gtest_filter=OnPurpose.LogsAWarning");
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.output, HasSubstr("unexpected log line"));
    EXPECT_THAT(result.output, HasSubstr("warning: nobody expected this"));
    EXPECT_THAT(result.output, HasSubstr("[  FAILED  ] OnPurpose.LogsAWarning"));
}

TEST(LogGuard, ALackOfAnExpectedWarningFailsTheTest) {
    const ProgramResult result = run_failing_program("--gtest_filter=OnPurpose.LacksAnExpectedWarning");
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.output, HasSubstr("no warning or error was logged that matches 'never logged'"));
}

TEST(LogGuard, ExpectedLinesAreCountedAndAllowed) {
    const ExpectedLog expected("peer [0-9]+ is gone");
    log::warning("peer {} is gone", 3);
    log::error("peer {} is gone", 14);
    EXPECT_EQ(expected.seen(), 2);
    const ExpectedLog allowed("may or may not come", ExpectedLog::Presence::kAllowed);
    EXPECT_EQ(allowed.seen(), 0);
}

TEST(LogGuard, InformationIsNoConcern) { log::info("all is well"); }

}  // namespace
}  // namespace sluice::test

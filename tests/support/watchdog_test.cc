#include "tests/support/watchdog.h"

#include "tests/support/run_failing_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace sluice::test {
namespace {

using testing::HasSubstr;

TEST(Watchdog, NamesTheTestThatHangsAndWhatItsThreadWaitsIn) {
    const auto start = std::chrono::steady_clock::now();
    const ProgramResult result = run_failing_program("--gtest_filter=OnPurpose.Hangs --sluice_time_limit=1");
    EXPECT_NE(result.code, 0);
    EXPECT_THAT(result.output, HasSubstr("watchdog: time limit of 1 s is over in OnPurpose.Hangs"));
    EXPECT_THAT(result.output, HasSubstr("thread failing_on_purp"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Watchdog, RefusesALimitThatIsNoNumber) {
    const ProgramResult result = run_failing_program("--sluice_time_limit=soon");
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.output, HasSubstr("--sluice_time_limit=soon: give whole seconds"));
}

}  // namespace
}  // namespace sluice::test

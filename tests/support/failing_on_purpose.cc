// Tests that fail or hang, run as a program of its own by the tests of the test support.
#include "runtime/services/log.h"
#include "tests/support/log_guard.h"

#include <gtest/gtest.h>

#include <unistd.h>

namespace sluice::test {
namespace {

TEST(OnPurpose, Hangs) {
    while (true) {
        ::pause();
    }
}

TEST(OnPurpose, LogsAWarning) { log::warning("nobody expected this"); }

TEST(OnPurpose, LacksAnExpectedWarning) { const ExpectedLog expected("never logged"); }

}  // namespace
}  // namespace sluice::test

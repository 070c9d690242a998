#include "tests/support/log_guard.h"
#include "tests/support/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <charconv>
#include <cstdio>
#include <string_view>

namespace {

constexpr std::string_view kTimeLimitFlag = "--sluice_time_limit=";

}  // namespace

int main(int argc, char** argv) {
    testing::InitGoogleMock(&argc, argv);
    int limit_s = 0;  // none: the program runs under a debugger, say
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        if (!argument.starts_with(kTimeLimitFlag)) {
            continue;
        }
        const std::string_view number = argument.substr(kTimeLimitFlag.size());
        const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), limit_s);
        if (error != std::errc() || end != number.data() + number.size() || limit_s < 1) {
            std::fprintf(stderr, "%s: give whole seconds, at least 1\n", argv[i]);
            return 2;
        }
    }
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    listeners.Append(new sluice::test::LogGuard);  // the list owns its listeners
    if (limit_s > 0) {
        listeners.Append(new sluice::test::Watchdog(std::chrono::seconds(limit_s)));
    }
    return RUN_ALL_TESTS();
}

#include "runtime/services/log.h"

#include "tests/support/log_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;
using ::testing::Pair;
using Lines = std::vector<std::pair<LogLevel, std::string>>;

class LogTest : public ::testing::Test {
protected:
    LogTest() : observer_([this](LogLevel level, std::string_view message) { lines_.emplace_back(level, message); }) {}
    ~LogTest() override {
        log::set_level(LogLevel::kInfo);
        log::set_tag("sluice");
    }

    const test::ExpectedLog any_{".*", test::ExpectedLog::Presence::kAllowed};
    Lines lines_;
    log::Observer observer_;
};

TEST_F(LogTest, LinesBelowTheLevelAreDropped) {
    log::debug("hidden");
    log::set_level(LogLevel::kWarning);
    EXPECT_EQ(log::level(), LogLevel::kWarning);
    log::info("hidden too {}", 1);
    log::warning("peer {} is slow", 3);
    log::error("rank {}: {}", 1, "gone");
    EXPECT_THAT(lines_,
                ElementsAre(Pair(LogLevel::kWarning, "peer 3 is slow"), Pair(LogLevel::kError, "rank 1: gone")));
    log::set_level(LogLevel::kOff);
    log::error("nobody sees this");
    log::write(LogLevel::kOff, "nor this");
    log::set_level(LogLevel::kDebug);
    log::debug("{}", "seen");
    EXPECT_EQ(lines_.size(), 3u);
    EXPECT_EQ(lines_.back().second, "seen");
}

TEST_F(LogTest, StderrHasOneFormatWithTheTag) {
    log::set_tag("worker 3");
    ::testing::internal::CaptureStderr();
    log::warning("two\nlines");
    log::write(LogLevel::kInfo, "{} is text here");
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(text, MatchesRegex("[0-9][0-9]:[0-9][0-9]:[0-9][0-9]\\.[0-9]+ worker 3 warning: two lines\n"
                                   "[0-9][0-9]:[0-9][0-9]:[0-9][0-9]\\.[0-9]+ worker 3 info: \\{\\} is text here\n"));
}

TEST_F(LogTest, TheTagKeepsLevelAndObservers) {
    log::set_level(LogLevel::kError);
    log::set_tag("trainer 0");
    log::warning("dropped");
    log::error("kept");
    EXPECT_THAT(lines_, ElementsAre(Pair(LogLevel::kError, "kept")));
}

TEST_F(LogTest, AnObserverSeesNothingAfterItsEnd) {
    int seen = 0;
    {
        log::Observer inner([&seen](LogLevel, std::string_view) { ++seen; });
        log::info("one");
    }
    log::info("two");
    EXPECT_EQ(seen, 1);
    EXPECT_EQ(lines_.size(), 2u);
}

TEST_F(LogTest, ObserversComeAndGoWhileOthersLog) {
    log::set_level(LogLevel::kDebug);
    std::thread speaker([] {
        for (int i = 0; i < 300; ++i) {
            log::debug("line {}", i);
        }
    });
    for (int i = 0; i < 100; ++i) {
        log::Observer inner([](LogLevel, std::string_view) {});
    }
    speaker.join();
    ASSERT_EQ(lines_.size(), 300u);
    EXPECT_EQ(lines_[299].second, "line 299");
}

TEST(LogLevelTest, NamesRoundTrip) {
    for (const LogLevel level :
         {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
        EXPECT_EQ(parse_log_level(to_string(level)), level);
    }
    EXPECT_EQ(parse_log_level("Info"), std::nullopt);
    EXPECT_EQ(parse_log_level(""), std::nullopt);
}

}  // namespace
}  // namespace sluice

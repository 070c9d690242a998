#include "tests/support/log_guard.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace sluice::test {
namespace {

// Shared by listener, expectations and the logging threads.
std::mutex mutex;
std::vector<ExpectedLog*> expectations;
std::vector<std::string> unexpected;

}  // namespace

LogGuard::LogGuard() {
    // Static, and so destroyed before the sinks it hangs on; gtest destroys its listeners, and with them any member,
    // only after those.
    static const log::Observer observer([](LogLevel level, std::string_view message) {
        if (level < LogLevel::kWarning) {
            return;
        }
        const std::scoped_lock lock(mutex);
        for (ExpectedLog* expectation : expectations) {
            if (std::regex_search(message.begin(), message.end(), expectation->regex_)) {
                ++expectation->seen_;
                return;
            }
        }
        unexpected.push_back(std::string(to_string(level)) + ": " + std::string(message));
    });
}

void LogGuard::OnTestEnd(const testing::TestInfo& /*test*/) { report_unexpected_log_lines(); }

void report_unexpected_log_lines() {
    std::vector<std::string> lines;
    {
        const std::scoped_lock lock(mutex);
        lines.swap(unexpected);
    }
    for (const std::string& line : lines) {
        ADD_FAILURE() << "unexpected log line, allow it with sluice::test::ExpectedLog: " << line;
    }
}

ExpectedLog::ExpectedLog(const std::string& pattern, Presence presence)
    : pattern_(pattern), regex_(pattern), presence_(presence) {
    const std::scoped_lock lock(mutex);
    expectations.push_back(this);
}

ExpectedLog::~ExpectedLog() {
    {
        const std::scoped_lock lock(mutex);
        std::erase(expectations, this);
    }
    if (presence_ == Presence::kRequired && seen_ == 0) {
        ADD_FAILURE() << "no warning or error was logged that matches '" << pattern_ << "'";
    }
}

int ExpectedLog::seen() const {
    const std::scoped_lock lock(mutex);
    return seen_;
}

}  // namespace sluice::test

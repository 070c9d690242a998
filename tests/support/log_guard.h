#pragma once

#include "runtime/services/log.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace sluice::test {

/// Fails each test during which a warning or an error was logged that no ExpectedLog allows.
class LogGuard : public testing::EmptyTestEventListener {
public:
    LogGuard();
    void OnTestEnd(const testing::TestInfo& test) override;
};

/// While it lives, warnings and errors that contain a match of `pattern` (ECMAScript) are expected, and `required`
/// says whether there must be one: then a lack of it fails the test when the object dies.
class ExpectedLog {
public:
    enum class Presence { kRequired, kAllowed };
    explicit ExpectedLog(const std::string& pattern, Presence presence = Presence::kRequired);
    ~ExpectedLog();
    ExpectedLog(const ExpectedLog&) = delete;
    ExpectedLog& operator=(const ExpectedLog&) = delete;

    /// Lines that matched so far.
    [[nodiscard]] int seen() const;

private:
    friend class LogGuard;
    std::string pattern_;
    std::regex regex_;
    Presence presence_;
    int seen_ = 0;
};

/// Fails the current test for each unexpected line so far and forgets them. For forked children, which no listener
/// watches: ForkedPeers calls it.
void report_unexpected_log_lines();

}  // namespace sluice::test

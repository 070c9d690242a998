#pragma once

#include "runtime/base/log_level.h"

#include <fmt/core.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

/// Log lines of this process, on stderr, through spdlog's default logger:
///   12:00:00.123 trainer 1 warning: one line of text
/// Any thread. A line is written by one call, whole; line breaks in it become spaces. The layer that decides that
/// something is an error logs it, once.
namespace sluice::log {

/// Lines below `level` are dropped before they are formatted. The level is "info" until this is called.
void set_level(LogLevel level);
[[nodiscard]] LogLevel level();
[[nodiscard]] bool enabled(LogLevel level);

/// Who speaks, on every later line: "trainer 1", "worker 0". "sluice" until this is called. In main only, before
/// other threads log.
void set_tag(std::string_view tag);

/// Writes one line. `message` is not a format string.
void write(LogLevel level, std::string_view message);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(LogLevel::kDebug)) {
        write(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
    }
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(LogLevel::kInfo)) {
        write(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
    }
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(LogLevel::kWarning)) {
        write(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
    }
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(LogLevel::kError)) {
        write(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
    }
}

/// Sees every line that passes the level, beside stderr, while it lives. `see` runs on the thread that logs, one call
/// at a time; it must not log. This is how tests fail on warnings that they did not expect.
class Observer {
public:
    explicit Observer(std::function<void(LogLevel level, std::string_view message)> see);
    ~Observer();
    Observer(const Observer&) = delete;
    Observer& operator=(const Observer&) = delete;

private:
    struct Sink;
    std::shared_ptr<Sink> sink_;
};

}  // namespace sluice::log

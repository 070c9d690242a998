#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice {

/// Severity of a log line. A level shows itself and everything after it.
enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError, kOff };

/// "debug", "info", "warning", "error", "off".
constexpr std::string_view to_string(LogLevel level) {
    switch (level) {
        case LogLevel::kDebug:
            return "debug";
        case LogLevel::kInfo:
            return "info";
        case LogLevel::kWarning:
            return "warning";
        case LogLevel::kError:
            return "error";
        case LogLevel::kOff:
            return "off";
    }
    return "unknown";
}

/// The names of to_string, exactly.
constexpr std::optional<LogLevel> parse_log_level(std::string_view name) {
    for (const LogLevel level :
         {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
        if (name == to_string(level)) {
            return level;
        }
    }
    return std::nullopt;
}

}  // namespace sluice

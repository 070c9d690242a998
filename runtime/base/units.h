#pragma once

#include "runtime/base/status.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

/// Sizes and times as people write them in variables and options.
namespace sluice {

/// "4194304", "4MiB", "64 KiB", "1G": a whole number >= 0 with an optional binary unit (K, M, G, T, each also with B or iB).
Result<std::int64_t> parse_bytes(std::string_view text);
/// "250ms", "1.5s", "2min"; a unit is required, except for 0. Down to one millisecond, at most 100 years.
Result<std::chrono::milliseconds> parse_duration(std::string_view text);

/// The shortest exact form that parse_bytes (parse_duration) reads: "4MiB", "1000B", "1500ms", "30s".
std::string format_bytes(std::int64_t bytes);
std::string format_duration(std::chrono::milliseconds duration);

}  // namespace sluice

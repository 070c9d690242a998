#pragma once

#include "runtime/base/status.h"
#include "runtime/services/trace.h"

#include <string>
#include <string_view>

namespace sluice {

/// A trace as it travels to the rank that writes it.
std::string encode_trace(const TraceLog& log);
/// Refuses what is malformed, has a lane or name that does not exist, or spans that end before they begin.
Result<TraceLog> decode_trace(std::string_view bytes);

}  // namespace sluice

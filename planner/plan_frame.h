#pragma once

#include "runtime/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

/// What an encoded plan message holds.
enum class PlanMessage : std::uint8_t { kDemand = 1, kOwnership, kRoute, kOwnerRoute, kPlanFile };
const char* to_string(PlanMessage kind);

/// Bytes that a frame adds to its body.
inline constexpr std::size_t kPlanFrameBytes = 16;

/// "SLPN", format version (16 bits), kind, a zero; the body; XXH3-64 of all before it. Little-endian on every machine.
std::string seal_plan_message(PlanMessage kind, std::string_view body);

/// The body of a frame (a view into `frame`), or invalid argument in one line: not a plan message, truncated, of another kind or
/// format version, altered.
Result<std::string_view> open_plan_message(PlanMessage kind, std::string_view frame);

}  // namespace sluice

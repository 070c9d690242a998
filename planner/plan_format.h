#pragma once

#include <cstdint>

namespace sluice {

/// Version of the plan encoding; part of every fingerprint. Raised when the meaning of an encoded message changes.
inline constexpr std::uint16_t kPlanFormatVersion = 1;

}  // namespace sluice

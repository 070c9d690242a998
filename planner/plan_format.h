#pragma once

#include <cstdint>

namespace sluice {

/// Version of the plan encoding; part of every fingerprint. Raised when the meaning of an encoded message changes.
inline constexpr std::uint16_t kPlanFormatVersion = 1;

/// Version of what a fingerprint is made of; part of it. Raised when that changes, so that older plans are made again.
inline constexpr std::uint16_t kFingerprintVersion = 2;

}  // namespace sluice

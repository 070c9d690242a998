#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

/// f32 to f8e4m3 (finite values only, as in PyTorch's float8_e4m3fn) by round to nearest even. Beyond 448 it saturates; a NaN of any
/// sign becomes 0x7F. The processor's and the GPU's results are equal.
constexpr std::uint8_t f8e4m3_from_f32(float value) {
    constexpr std::uint32_t kLargest = 0x7E;               // 448
    constexpr std::uint32_t kSmallestNormal = 121u << 23;  // 2^-6
    // The addition puts the last bit of a subnormal, 2^-9, at the end of the mantissa, and the processor rounds.
    constexpr float kSubnormalMagic = 16384.0F;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t sign = (bits >> 24) & 0x80u;
    if (magnitude > 0x7F800000u) {
        return 0x7F;
    }
    std::uint32_t out = 0;
    if (magnitude < kSmallestNormal) {
        out = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + kSubnormalMagic) -
              std::bit_cast<std::uint32_t>(kSubnormalMagic);
    } else {
        out = ((magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20) - ((127u - 7u) << 3);
        out = out > kLargest ? kLargest : out;
    }
    return static_cast<std::uint8_t>(out | sign);
}

}  // namespace sluice

#pragma once

#include <bit>
#include <cstdint>

/// Conversions between floating types by their bits. Narrowing rounds once, to nearest even, also from f64 to the 16-bit
/// types; overflow becomes infinity, a NaN stays a NaN of the same sign. The loops over them vectorise.
namespace sluice {

constexpr float f32_from_bf16(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

constexpr std::uint16_t bf16_from_f32(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    // Adding could carry a NaN's payload into an infinity: NaNs are cut and made quiet instead.
    const std::uint32_t nan = (bits >> 16) | 0x40u;
    return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

constexpr float f32_from_f16(std::uint16_t bits) {
    constexpr std::uint32_t kExponent = 0x7C00u << 13;
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    std::uint32_t out = (bits & 0x7FFFu) << 13;
    const std::uint32_t exponent = out & kExponent;
    out += (127u - 15u) << 23;
    if (exponent == kExponent) {
        out += (128u - 16u) << 23;
    }
    if (exponent == 0) {
        // Zero or subnormal: the subtraction normalises it exactly.
        out = std::bit_cast<std::uint32_t>(std::bit_cast<float>(out + (1u << 23)) - std::bit_cast<float>(113u << 23));
    }
    return std::bit_cast<float>(out | sign);
}

constexpr std::uint16_t f16_from_f32(float value) {
    constexpr std::uint32_t kInfinity = 255u << 23;
    constexpr std::uint32_t kTooLarge = (127u + 16u) << 23;
    constexpr std::uint32_t kSmallestNormal = (127u - 14u) << 23;
    constexpr std::uint32_t kSubnormalMagic = ((127u - 15u) + (23u - 10u) + 1u) << 23;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = bits & 0x80000000u;
    const std::uint32_t magnitude = bits ^ sign;
    std::uint32_t out = 0;
    if (magnitude >= kTooLarge) {
        out = magnitude > kInfinity ? 0x7E00u | ((magnitude >> 13) & 0x3FFu) : 0x7C00u;
    } else if (magnitude < kSmallestNormal) {
        // The addition shifts the mantissa to where a subnormal has it, and the processor rounds.
        out = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kSubnormalMagic)) -
              kSubnormalMagic;
    } else {
        out = (magnitude - ((127u - 15u) << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return static_cast<std::uint16_t>(out | (sign >> 16));
}

/// f64 to f32 by round to odd: not the nearest value, but rounding it again to at most 22 bits gives what rounding the
/// f64 once would have given.
constexpr float f32_from_f64_to_odd(double value) {
    const auto nearest = static_cast<float>(value);
    const double back = nearest;
    if (back == value || value != value) {
        return nearest;
    }
    auto bits = std::bit_cast<std::uint32_t>(nearest);
    const double magnitude = value < 0 ? -value : value;
    const double back_magnitude = back < 0 ? -back : back;
    if (back_magnitude > magnitude) {
        --bits;
    }
    return std::bit_cast<float>(bits | 1u);
}

constexpr std::uint16_t bf16_from_f64(double value) { return bf16_from_f32(f32_from_f64_to_odd(value)); }
constexpr std::uint16_t f16_from_f64(double value) { return f16_from_f32(f32_from_f64_to_odd(value)); }

}  // namespace sluice

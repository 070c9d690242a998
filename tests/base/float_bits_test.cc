#include "runtime/base/float_bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace sluice {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Rounding by definition, sharing nothing with the code under test: of all values of a 16-bit type, found by walking
// its magnitudes in order, the one nearest to `value`, of two the one with an even last bit.
template <class Decode>
std::uint16_t nearest_even(double value, std::uint16_t infinity, double overflow, Decode decode) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    if (magnitude >= overflow) {
        return sign | infinity;
    }
    std::uint16_t low = 0;  // Largest value <= magnitude, by bisection.
    std::uint16_t high = infinity;
    while (high - low > 1) {
        const auto middle = static_cast<std::uint16_t>((low + high) / 2);
        (decode(middle) <= magnitude ? low : high) = middle;
    }
    const double below = magnitude - decode(low);
    const double above = (high == infinity ? overflow * 2 - decode(low) - magnitude : decode(high) - magnitude);
    const bool up = above < below || (above == below && low % 2 == 1);
    return sign | static_cast<std::uint16_t>(low + (up ? 1 : 0));
}

double decode_bf16(std::uint16_t bits) {
    const int exponent = (bits >> 7) & 0xFF;
    const int mantissa = bits & 0x7F;
    return exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134);
}
double decode_f16(std::uint16_t bits) {
    const int exponent = (bits >> 10) & 0x1F;
    const int mantissa = bits & 0x3FF;
    return exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
}
std::uint16_t reference_bf16(double value) {
    // Half way between the largest finite value and what would follow it.
    return nearest_even(value, 0x7F80, std::ldexp(511, 119), decode_bf16);
}
std::uint16_t reference_f16(double value) { return nearest_even(value, 0x7C00, 65520.0, decode_f16); }

TEST(FloatBitsTest, Every16BitValueDecodesAndRoundTrips) {
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
        const auto b = static_cast<std::uint16_t>(bits);
        const float from_bf16 = f32_from_bf16(b);
        const float from_f16 = f32_from_f16(b);
        const double sign = (b & 0x8000) != 0 ? -1.0 : 1.0;
        if ((b & 0x7F80) == 0x7F80) {
            EXPECT_EQ(std::isnan(from_bf16), (b & 0x7F) != 0) << bits;
        } else {
            ASSERT_EQ(from_bf16, sign * decode_bf16(b & 0x7FFF)) << bits;
        }
        if ((b & 0x7C00) == 0x7C00) {
            EXPECT_EQ(std::isnan(from_f16), (b & 0x3FF) != 0) << bits;
        } else {
            ASSERT_EQ(from_f16, sign * decode_f16(b & 0x7FFF)) << bits;
        }
        EXPECT_EQ(std::signbit(from_bf16), sign < 0);
        EXPECT_EQ(std::signbit(from_f16), sign < 0);
        if (std::isnan(from_bf16)) {
            EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(from_bf16)))) << bits;
            EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f64(from_bf16)))) << bits;
        } else {
            ASSERT_EQ(bf16_from_f32(from_bf16), b);
            ASSERT_EQ(bf16_from_f64(from_bf16), b);
        }
        if (std::isnan(from_f16)) {
            EXPECT_TRUE(std::isnan(f32_from_f16(f16_from_f32(from_f16)))) << bits;
            EXPECT_TRUE(std::isnan(f32_from_f16(f16_from_f64(from_f16)))) << bits;
        } else {
            ASSERT_EQ(f16_from_f32(from_f16), b);
            ASSERT_EQ(f16_from_f64(from_f16), b);
        }
    }
}

TEST(FloatBitsTest, NeighboursOfEveryHalfwayPointRoundToNearestEven) {
    for (unsigned bits = 0; bits < 0x7C00; ++bits) {
        const double middle = (decode_f16(bits) + (bits == 0x7BFF ? 65536.0 : decode_f16(bits + 1))) / 2;
        for (const double value : {middle, std::nextafter(middle, 0.0), std::nextafter(middle, 1e9), -middle}) {
            ASSERT_EQ(f16_from_f64(value), reference_f16(value)) << bits;
            ASSERT_EQ(f16_from_f32(static_cast<float>(value)), reference_f16(static_cast<float>(value))) << bits;
        }
    }
    for (unsigned bits = 0; bits < 0x7F7F; ++bits) {
        const double middle = (decode_bf16(bits) + decode_bf16(bits + 1)) / 2;
        for (const double value : {middle, std::nextafter(middle, 0.0), std::nextafter(middle, 1e300), -middle}) {
            ASSERT_EQ(bf16_from_f64(value), reference_bf16(value)) << bits;
            ASSERT_EQ(bf16_from_f32(static_cast<float>(value)), reference_bf16(static_cast<float>(value))) << bits;
        }
    }
}

TEST(FloatBitsTest, RandomBitsRoundToNearestEven) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 200'000; ++i) {
        const auto f = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
        // Exponents near the 16-bit ranges, or all values would overflow or vanish.
        const double d = std::ldexp(std::bit_cast<double>((random() >> 12) | 0x3FF0000000000000ull),
                                    static_cast<int>(random() % 300) - 160) *
                         (random() % 2 == 0 ? 1 : -1);
        if (!std::isnan(f)) {
            ASSERT_EQ(bf16_from_f32(f), reference_bf16(f)) << f;
            ASSERT_EQ(f16_from_f32(f), reference_f16(f)) << f;
        }
        ASSERT_EQ(bf16_from_f64(d), reference_bf16(d)) << d;
        ASSERT_EQ(f16_from_f64(d), reference_f16(d)) << d;
    }
}

TEST(FloatBitsTest, F64IsRoundedOnce) {
    // 1 + 2^-8 is half way between two bf16 values; the last bit of the f64 decides, and an f32 in between would lose it.
    const double just_above = 1.0 + std::ldexp(1, -8) + std::ldexp(1, -50);
    EXPECT_EQ(bf16_from_f32(static_cast<float>(just_above)), 0x3F80);
    EXPECT_EQ(bf16_from_f64(just_above), 0x3F81);
    EXPECT_EQ(f16_from_f64(1.0 + std::ldexp(1, -11) + std::ldexp(1, -50)), 0x3C01);
}

TEST(FloatBitsTest, Specials) {
    EXPECT_EQ(bf16_from_f32(kInf), 0x7F80);
    EXPECT_EQ(bf16_from_f32(-kInf), 0xFF80);
    EXPECT_EQ(f16_from_f32(kInf), 0x7C00);
    EXPECT_EQ(f16_from_f64(-std::numeric_limits<double>::infinity()), 0xFC00);
    EXPECT_EQ(bf16_from_f32(std::numeric_limits<float>::max()), 0x7F80);
    EXPECT_EQ(bf16_from_f64(1e300), 0x7F80);
    EXPECT_EQ(f16_from_f64(-1e-300), 0x8000);
    EXPECT_EQ(f16_from_f32(-0.0f), 0x8000);
    // Signalling NaNs whose payload is only in the bits that are cut off.
    const auto nan = std::bit_cast<float>(0x7F800001u);
    EXPECT_EQ(bf16_from_f32(nan), 0x7FC0);
    EXPECT_EQ(f16_from_f32(nan), 0x7E00);
    EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f64(std::bit_cast<double>(0xFFF0000000000001ull)))));
    static_assert(bf16_from_f32(1.0f) == 0x3F80 && f16_from_f32(1.0f) == 0x3C00 && f32_from_f16(0x3C00) == 1.0f);
}

}  // namespace
}  // namespace sluice

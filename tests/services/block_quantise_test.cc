#include "runtime/services/block_quantise.h"

#include "runtime/base/float8_bits.h"
#include "runtime/base/float_bits.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace sluice {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The value of an f8e4m3, by the definition of the format.
double decode(std::uint8_t bits) {
    const int exponent = bits >> 3 & 15;
    const double mantissa = bits & 7;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8, exponent - 7);
    return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(Float8, RoundsToTheNearestAndTiesToEven) {
    for (std::uint8_t code = 0; code < 0x7E; ++code) {
        const double low = decode(code);
        const double high = decode(static_cast<std::uint8_t>(code + 1));
        const auto middle = static_cast<float>((low + high) / 2);
        for (const std::uint8_t sign : {std::uint8_t{0}, std::uint8_t{0x80}}) {
            const float factor = sign != 0 ? -1.0F : 1.0F;
            const auto expect = [&](float value, int expected) {
                EXPECT_EQ(f8e4m3_from_f32(factor * value), expected | sign) << value;
            };
            expect(static_cast<float>(low), code);
            expect(middle, code % 2 == 0 ? code : code + 1);
            expect(std::nextafter(middle, 0.0F), code);
            expect(std::nextafter(middle, kInfinity), code + 1);
        }
    }
}

TEST(Float8, SaturatesAndKeepsNaN) {
    for (const float value : {448.0F, 449.0F, 463.9F, 464.0F, 1e30F, kInfinity}) {
        EXPECT_EQ(f8e4m3_from_f32(value), 0x7E);
        EXPECT_EQ(f8e4m3_from_f32(-value), 0xFE);
    }
    EXPECT_EQ(f8e4m3_from_f32(std::numeric_limits<float>::quiet_NaN()), 0x7F);
    EXPECT_EQ(f8e4m3_from_f32(-std::numeric_limits<float>::quiet_NaN()), 0x7F);
    EXPECT_EQ(f8e4m3_from_f32(std::numeric_limits<float>::denorm_min()), 0);
    EXPECT_EQ(f8e4m3_from_f32(-0.0F), 0x80);
}

struct Quantised {
    std::vector<std::byte> values;
    std::vector<float> scales;
};

Quantised quantised(const std::vector<float>& source, std::int64_t matrices, std::int64_t rows, std::int64_t columns) {
    BlockQuantisation job;
    job.matrices = matrices;
    job.rows = rows;
    job.columns = columns;
    job.from = DType::kF32;
    job.source = reinterpret_cast<const std::byte*>(source.data());
    Quantised out;
    out.values.resize(source.size());
    out.scales.resize(static_cast<std::size_t>(matrices * job.block_rows() * job.block_columns()), -1);
    job.values = out.values.data();
    job.scales = out.scales.data();
    EXPECT_TRUE(check_quantisation(job).ok());
    quantise_blocks(job);
    return out;
}

TEST(BlockQuantise, EachBlockHasItsOwnScale) {
    constexpr std::int64_t kMatrices = 2, kRows = 200, kColumns = 300;
    std::vector<float> source(kMatrices * kRows * kColumns);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < source.size(); ++i) {
        source[i] = normal(random) * static_cast<float>(1 + i % kColumns / 128 + 10 * (i / kColumns % kRows / 128));
    }
    const Quantised result = quantised(source, kMatrices, kRows, kColumns);
    for (std::int64_t m = 0; m < kMatrices; ++m) {
        for (std::int64_t block = 0; block < 6; ++block) {
            float amax = 0;
            const auto each = [&](auto&& visit) {
                for (std::int64_t r = block / 3 * 128; r < std::min<std::int64_t>(kRows, block / 3 * 128 + 128); ++r) {
                    for (std::int64_t c = block % 3 * 128; c < std::min<std::int64_t>(kColumns, block % 3 * 128 + 128);
                         ++c) {
                        visit(static_cast<std::size_t>((m * kRows + r) * kColumns + c));
                    }
                }
            };
            each([&](std::size_t i) { amax = std::max(amax, std::fabs(source[i])); });
            const float scale = result.scales[static_cast<std::size_t>(m * 6 + block)];
            ASSERT_EQ(scale, amax / 448.0F);
            each([&](std::size_t i) {
                ASSERT_EQ(result.values[i], std::byte{f8e4m3_from_f32(source[i] / scale)}) << i;
            });
        }
    }
}

TEST(BlockQuantise, SmallBlocksHaveTheLeastScale) {
    const Quantised zeros = quantised(std::vector<float>(128 * 128, -0.0F), 1, 128, 128);
    EXPECT_EQ(zeros.scales[0], 1e-4F / 448.0F);
    EXPECT_EQ(zeros.values[5], std::byte{0x80});
}

TEST(BlockQuantise, ANaNSpoilsItsBlockAloneAndAnInfinityTheRest) {
    std::vector<float> source(128 * 256, 1.0F);
    source[3] = std::numeric_limits<float>::quiet_NaN();
    source[200] = -kInfinity;
    const Quantised result = quantised(source, 1, 128, 256);
    EXPECT_TRUE(std::isnan(result.scales[0]));
    EXPECT_EQ(result.values[0], std::byte{0x7F});
    EXPECT_EQ(result.scales[1], kInfinity);
    EXPECT_EQ(result.values[200], std::byte{0x7F});
    EXPECT_EQ(result.values[201], std::byte{0});
}

TEST(BlockQuantise, RefusesWhatItCannotRead) {
    BlockQuantisation job;
    job.from = DType::kI32;
    EXPECT_EQ(check_quantisation(job).code(), StatusCode::kInvalidArgument);
    job.from = DType::kF16;
    job.rows = -1;
    EXPECT_EQ(check_quantisation(job).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice

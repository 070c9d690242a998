#include "runtime/services/tensor_values.h"

#include "runtime/base/float_bits.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace sluice {
namespace {

using Bytes = std::vector<std::byte>;

constexpr const char* kName = "model.layers.0.self_attn.q_proj.weight";
constexpr std::int64_t kFar = 5'000'000'000;

std::uint64_t element(const Bytes& bytes, std::size_t index, std::size_t size) {
    std::uint64_t out = 0;
    std::memcpy(&out, bytes.data() + index * size, size);
    return out;
}

std::uint64_t one(DType dtype, std::int64_t index, std::int64_t version) {
    Bytes bytes(static_cast<std::size_t>(size_of(dtype)));
    fill_generated(name_hash(kName), dtype, index, 1, version, bytes.data());
    return element(bytes, 0, bytes.size());
}

TEST(TensorValuesTest, KnownHashes) {
    EXPECT_EQ(name_hash(""), 0xEF46DB3751D8E999u);
    EXPECT_EQ(name_hash("abc"), 0x44BC2CF5AD770999u);
    EXPECT_EQ(name_hash(kName), 0x076C90217961A060u);
}

// Computed apart, by a Python program written from the specification of XXH64, of splitmix64 and of the values.
TEST(TensorValuesTest, KnownValues) {
    struct Known {
        DType dtype;
        std::array<std::uint64_t, 6> values;  // (index, version): (0,1) (1,1) (5e9,1) (0,2) (1,3) (5e9,2)
    };
    const Known known[] = {
        {DType::kBF16, {0xbf2a, 0xbfec, 0xbd32, 0xbf47, 0xbfaa, 0xbd69}},
        {DType::kF16, {0xb9aa, 0xbcec, 0xa932, 0xb8c7, 0xbfaa, 0xa8e9}},
        {DType::kF32, {0xbd469daa, 0xbfcfc4ec, 0x3c02a532, 0xbd5414c7, 0xbfb0c7aa, 0x3c25f4e9}},
        {DType::kF64,
         {0x3fd31b22cac69daa, 0xbfa6bbcf92cfc4ec, 0x3fc129784502a532, 0x3fd3014ac5d414c7, 0xbfab2bcd5ab0c7aa,
          0x3fcd0bd65725f4e9}},
        {DType::kF8E4M3, {0xaa, 0xec, 0x32, 0xaf, 0xea, 0x31}},
        {DType::kF8E5M2, {0xaa, 0xec, 0x32, 0xab, 0xee, 0x31}},
        {DType::kI64,
         {0x61531b22cac69daa, 0xe526bbcf92cfc4ec, 0x4cc129784502a532, 0xded3014ac5d414c7, 0x132b2bcd5ab0c7aa,
          0xf75d0bd65725f4e9}},
        {DType::kU64,
         {0x61531b22cac69daa, 0xe526bbcf92cfc4ec, 0x4cc129784502a532, 0xded3014ac5d414c7, 0x132b2bcd5ab0c7aa,
          0xf75d0bd65725f4e9}},
        {DType::kI32, {0xcac69daa, 0x92cfc4ec, 0x4502a532, 0xc5d414c7, 0x5ab0c7aa, 0x5725f4e9}},
        {DType::kU32, {0xcac69daa, 0x92cfc4ec, 0x4502a532, 0xc5d414c7, 0x5ab0c7aa, 0x5725f4e9}},
        {DType::kI16, {0x9daa, 0xc4ec, 0xa532, 0x14c7, 0xc7aa, 0xf4e9}},
        {DType::kU16, {0x9daa, 0xc4ec, 0xa532, 0x14c7, 0xc7aa, 0xf4e9}},
        {DType::kI8, {0xaa, 0xec, 0x32, 0xc7, 0xaa, 0xe9}},
        {DType::kU8, {0xaa, 0xec, 0x32, 0xc7, 0xaa, 0xe9}},
        {DType::kBool, {0, 0, 0, 0, 0, 0}},
    };
    static_assert(std::size(known) == kDTypeCount);
    for (const Known& k : known) {
        EXPECT_EQ(one(k.dtype, 0, 1), k.values[0]) << to_string(k.dtype);
        EXPECT_EQ(one(k.dtype, 1, 1), k.values[1]) << to_string(k.dtype);
        EXPECT_EQ(one(k.dtype, kFar, 1), k.values[2]) << to_string(k.dtype);
        EXPECT_EQ(one(k.dtype, 0, 2), k.values[3]) << to_string(k.dtype);
        EXPECT_EQ(one(k.dtype, 1, 3), k.values[4]) << to_string(k.dtype);
        EXPECT_EQ(one(k.dtype, kFar, 2), k.values[5]) << to_string(k.dtype);
    }
}

std::uint64_t mix64(std::uint64_t z) {
    z ^= z >> 30;
    z *= 0xBF58476D1CE4E5B9u;
    z ^= z >> 27;
    z *= 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// DESIGN 7.1 once more, one element at a time, as sign, exponent and mantissa.
std::uint64_t reference(std::uint64_t h, DType dtype, std::uint64_t i, std::uint64_t version) {
    const std::uint64_t r = mix64(h + i);
    const auto size = size_of(dtype);
    const std::uint64_t all = size == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * size)) - 1;
    std::uint64_t value = r & all;
    std::uint64_t mask = all;
    const auto floating = [&](int mantissa, int low_exponent, int from_bit, int sign_bit) {
        mask = (std::uint64_t{1} << mantissa) - 1;
        const std::uint64_t exponent = static_cast<std::uint64_t>(low_exponent) + ((r >> from_bit) % 8);
        value = (r & mask) + (exponent << mantissa) + (((r >> sign_bit) % 2) << sign_bit);
    };
    switch (dtype) {
        case DType::kBF16:
            floating(7, 0x78, 16, 15);
            break;
        case DType::kF16:
            floating(10, 8, 16, 15);
            break;
        case DType::kF32:
            floating(23, 0x78, 32, 31);
            break;
        case DType::kF64:
            floating(52, 0x3F8, 52, 63);
            break;
        case DType::kF8E4M3:
            mask = 7;
            break;
        case DType::kF8E5M2:
            mask = 3;
            break;
        case DType::kBool:
            value = r % 2;
            mask = 0;
            break;
        default:
            break;
    }
    return version == 1 ? value : value ^ (mix64(h + i + version * 0x9E3779B97F4A7C15u) & mask);
}

TEST(TensorValuesTest, RunsOfAllTypesEqualTheReference) {
    std::mt19937_64 random(1);
    for (int d = 0; d < kDTypeCount; ++d) {
        const auto dtype = static_cast<DType>(d);
        const auto size = static_cast<std::size_t>(size_of(dtype));
        for (int round = 0; round < 60; ++round) {
            const std::uint64_t h = round == 0 ? ~std::uint64_t{0} - 3 : random();  // Also where h + i wraps.
            const auto first = static_cast<std::int64_t>(random() % (std::uint64_t{1} << (round % 40)));
            const std::size_t count = random() % 300;
            const auto version = static_cast<std::int64_t>(1 + random() % 4);
            const std::size_t shift = random() % 8;  // Elements in a dump need not be aligned.
            Bytes bytes(shift + count * size + 1, std::byte{0x5A});
            fill_generated(h, dtype, first, static_cast<std::int64_t>(count), version, bytes.data() + shift);
            Bytes advanced = bytes;
            fill_generated(h, dtype, first, static_cast<std::int64_t>(count), 1, advanced.data() + shift);
            const Bytes version_one = advanced;
            advance_to_version(h, dtype, first, static_cast<std::int64_t>(count), version, advanced.data() + shift);
            EXPECT_TRUE(advanced == bytes) << to_string(dtype);
            advance_to_version(h, dtype, first, static_cast<std::int64_t>(count), version, advanced.data() + shift);
            EXPECT_TRUE(advanced == version_one) << "advancing twice is no change";
            for (std::size_t k = 0; k < count; ++k) {
                std::uint64_t value = 0;
                std::memcpy(&value, bytes.data() + shift + k * size, size);
                ASSERT_EQ(value, reference(h, dtype, static_cast<std::uint64_t>(first) + k,
                                           static_cast<std::uint64_t>(version)))
                    << to_string(dtype) << " version " << version;
            }
            EXPECT_EQ(bytes.back(), std::byte{0x5A});
        }
    }
}

TEST(TensorValuesTest, VersionsOfFileBitsKeepSignAndExponent) {
    std::mt19937_64 random(2);
    Bytes file(2 * 4096);
    for (std::byte& byte : file) {
        byte = static_cast<std::byte>(random());
    }
    Bytes two = file;
    Bytes three = file;
    advance_to_version(name_hash(kName), DType::kBF16, 7, 4096, 2, two.data());
    advance_to_version(name_hash(kName), DType::kBF16, 7, 4096, 3, three.data());
    int changed = 0;
    int different = 0;
    for (std::size_t k = 0; k < 4096; ++k) {
        EXPECT_EQ((element(two, k, 2) ^ element(file, k, 2)) & 0xFF80u, 0u);
        changed += element(two, k, 2) != element(file, k, 2) ? 1 : 0;
        different += element(two, k, 2) != element(three, k, 2) ? 1 : 0;
    }
    EXPECT_GT(changed, 4000);
    EXPECT_GT(different, 4000);
}

TEST(TensorValuesTest, GeneratedFloatsAreFiniteAndOfOrdinarySize) {
    Bytes bytes(2 * 10'000);
    for (const std::int64_t version : {1, 2, 3}) {
        for (const DType dtype : {DType::kBF16, DType::kF16}) {
            fill_generated(name_hash(kName), dtype, 0, 10'000, version, bytes.data());
            for (std::size_t k = 0; k < 10'000; ++k) {
                const auto bits = static_cast<std::uint16_t>(element(bytes, k, 2));
                const float value = std::fabs(dtype == DType::kBF16 ? f32_from_bf16(bits) : f32_from_f16(bits));
                ASSERT_GE(value, 1.0f / 128);
                ASSERT_LT(value, 2.0f);
            }
        }
    }
}

}  // namespace
}  // namespace sluice

#include "runtime/base/shape.h"

#include <gtest/gtest.h>

#include <limits>

namespace sluice {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

TEST(ShapeTest, ArithmeticIsChecked) {
    EXPECT_EQ(checked_mul(std::int64_t{1} << 31, std::int64_t{1} << 31), std::int64_t{1} << 62);
    EXPECT_EQ(checked_mul(std::int64_t{1} << 32, std::int64_t{1} << 31), std::nullopt);
    EXPECT_EQ(checked_mul(kMin, -1), std::nullopt);
    EXPECT_EQ(checked_add(kMax, 0), kMax);
    EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
    EXPECT_EQ(checked_add(kMin, -1), std::nullopt);
}

TEST(ShapeTest, NumberOfElements) {
    EXPECT_EQ(num_elements(Dims{}), 1);
    EXPECT_EQ(num_elements(Dims{0}), 0);
    EXPECT_EQ(num_elements(Dims{3, 0, 5}), 0);
    EXPECT_EQ(num_elements(Dims{151936, 4096}), 622329856);
    EXPECT_EQ(num_elements(Dims{1 << 20, 1 << 20, 1 << 20}), std::int64_t{1} << 60);
    EXPECT_EQ(checked_num_elements(Dims{-1}), std::nullopt);
    EXPECT_EQ(checked_num_elements(Dims{0, -1}), std::nullopt);
    EXPECT_EQ(checked_num_elements(Dims{kMax, 2}), std::nullopt);
    EXPECT_EQ(checked_num_elements(Dims{kMax, 1, 1}), kMax);
}

TEST(ShapeTest, AZeroDoesNotHideAnOverflow) {
    EXPECT_EQ(checked_num_elements(Dims{kMax, 2, 0}), std::nullopt);
    EXPECT_EQ(checked_num_elements(Dims{0, kMax, 2}), std::nullopt);
}

TEST(ShapeTest, RowMajorStrides) {
    EXPECT_EQ(contiguous_strides(Dims{2, 3, 4}), (Dims{12, 4, 1}));
    EXPECT_EQ(contiguous_strides(Dims{2, 3, 4}, 2), (Dims{24, 8, 2}));
    EXPECT_EQ(contiguous_strides(Dims{}), Dims{});
    EXPECT_EQ(contiguous_strides(Dims{5, 0, 4}), (Dims{4, 4, 1}));
}

TEST(ShapeTest, Text) {
    EXPECT_EQ(to_string(Dims{}), "[]");
    EXPECT_EQ(to_string(Dims{4, 128}), "[4, 128]");
}

}  // namespace
}  // namespace sluice

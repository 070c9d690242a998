#include "runtime/base/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace sluice {
namespace {

TEST(DTypeTest, EveryNameRoundTripsAndIsUnique) {
    std::set<std::string> names;
    std::set<std::string> safetensors;
    for (int i = 0; i < kDTypeCount; ++i) {
        const auto dtype = static_cast<DType>(i);
        EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
        EXPECT_EQ(parse_safetensors_dtype(safetensors_name(dtype)), dtype);
        names.emplace(to_string(dtype));
        safetensors.emplace(safetensors_name(dtype));
    }
    EXPECT_EQ(names.size(), static_cast<std::size_t>(kDTypeCount));
    EXPECT_EQ(safetensors.size(), static_cast<std::size_t>(kDTypeCount));
}

TEST(DTypeTest, SizesAndKinds) {
    EXPECT_EQ(size_of(DType::kF64), 8);
    EXPECT_EQ(size_of(DType::kF32), 4);
    EXPECT_EQ(size_of(DType::kF16), 2);
    EXPECT_EQ(size_of(DType::kBF16), 2);
    EXPECT_EQ(size_of(DType::kF8E4M3), 1);
    EXPECT_EQ(size_of(DType::kF8E5M2), 1);
    EXPECT_EQ(size_of(DType::kI64), 8);
    EXPECT_EQ(size_of(DType::kU32), 4);
    EXPECT_EQ(size_of(DType::kI16), 2);
    EXPECT_EQ(size_of(DType::kBool), 1);
    EXPECT_TRUE(is_floating(DType::kF8E5M2));
    EXPECT_TRUE(is_floating(DType::kBF16));
    EXPECT_FALSE(is_floating(DType::kU8));
    EXPECT_FALSE(is_floating(DType::kBool));
}

TEST(DTypeTest, SpellingsOfCataloguesAndConfigs) {
    EXPECT_EQ(parse_dtype("fp32"), DType::kF32);
    EXPECT_EQ(parse_dtype("fp8_e4m3"), DType::kF8E4M3);
    EXPECT_EQ(parse_torch_dtype("bfloat16"), DType::kBF16);
    EXPECT_EQ(torch_name(DType::kBF16), "bfloat16");
    EXPECT_EQ(parse_torch_dtype("float16"), DType::kF16);
    EXPECT_EQ(parse_safetensors_dtype("F8_E5M2"), DType::kF8E5M2);
    EXPECT_EQ(parse_safetensors_dtype("bf16"), std::nullopt);
    EXPECT_EQ(parse_dtype(""), std::nullopt);
    EXPECT_EQ(parse_torch_dtype("half"), std::nullopt);
}

}  // namespace
}  // namespace sluice

#include "runtime/base/units.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using std::chrono::milliseconds;

TEST(UnitsTest, Sizes) {
    EXPECT_EQ(*parse_bytes("0"), 0);
    EXPECT_EQ(*parse_bytes("4194304"), 4194304);
    EXPECT_EQ(*parse_bytes("4MiB"), 4194304);
    EXPECT_EQ(*parse_bytes("64 KiB"), 65536);
    EXPECT_EQ(*parse_bytes("1G"), 1073741824);
    EXPECT_EQ(*parse_bytes("2TB"), std::int64_t{2} << 40);
    EXPECT_EQ(*parse_bytes("12B"), 12);
    for (const char* bad :
         {"", " ", "M", "-1", "-1K", "4 Mi", "1.5M", "4m", "1e6", "0x10", "4MiBs", "99999999999999999999"}) {
        const auto result = parse_bytes(bad);
        ASSERT_FALSE(result.ok()) << bad;
        EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
        EXPECT_NE(result.status().message().find("'" + std::string(bad) + "'"), std::string::npos);
    }
    EXPECT_NE(parse_bytes("8388608T").status().message().find("64 bits"), std::string::npos);
}

TEST(UnitsTest, Times) {
    EXPECT_EQ(*parse_duration("0"), milliseconds(0));
    EXPECT_EQ(*parse_duration("250ms"), milliseconds(250));
    EXPECT_EQ(*parse_duration("1.5s"), milliseconds(1500));
    EXPECT_EQ(*parse_duration("2 min"), milliseconds(120000));
    EXPECT_EQ(*parse_duration("1h"), milliseconds(3600000));
    EXPECT_EQ(*parse_duration("0.001s"), milliseconds(1));
    for (const char* bad :
         {"", "5", "ms", "-1s", "1d", "nan s", "nans", "inf", "infs", "1e3s", "0.1ms", "99999999h", "1s2"}) {
        const auto result = parse_duration(bad);
        ASSERT_FALSE(result.ok()) << bad;
        EXPECT_NE(result.status().message().find("'" + std::string(bad) + "'"), std::string::npos);
    }
}

TEST(UnitsTest, WhatIsWrittenIsReadAgain) {
    EXPECT_EQ(format_bytes(0), "0B");
    EXPECT_EQ(format_bytes(1000), "1000B");
    EXPECT_EQ(format_bytes(4 << 20), "4MiB");
    EXPECT_EQ(format_bytes(1536), "1536B");
    EXPECT_EQ(format_bytes(std::int64_t{3} << 50), "3072TiB");
    EXPECT_EQ(format_duration(milliseconds(1500)), "1500ms");
    EXPECT_EQ(format_duration(milliseconds(30000)), "30s");
    EXPECT_EQ(format_duration(milliseconds(0)), "0s");
    for (const std::int64_t n :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{1023}, std::int64_t{1024}, std::int64_t{5} << 41}) {
        EXPECT_EQ(*parse_bytes(format_bytes(n)), n);
        EXPECT_EQ(*parse_duration(format_duration(milliseconds(n % 100000))), milliseconds(n % 100000));
    }
}

}  // namespace
}  // namespace sluice

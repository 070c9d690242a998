#include "transport/ucx/link_classifier.h"

#include <gtest/gtest.h>

namespace sluice::transport {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(LinkClassifierTest, ReadsWhatUcxSaysAboutAGet) {
    const auto cma = link_from_description(
        "{proto|init} get into host memory length 65536 zero-copy cma/memory 9971.4 MB/s 6.27 us");
    ASSERT_TRUE(cma);
    EXPECT_EQ(cma->transport, "cma/memory");
    EXPECT_EQ(cma->link_class, LinkClass::kOneSided);
    EXPECT_EQ(cma->max_get_bytes, kMiB);

    const auto tcp = link_from_description(
        "{proto|init} get into host memory length 1 software emulation tcp/lo 0.0 MB/s 122.08 us");
    ASSERT_TRUE(tcp);
    EXPECT_EQ(tcp->transport, "tcp/lo");
    EXPECT_EQ(tcp->link_class, LinkClass::kEmulated);
    EXPECT_EQ(tcp->max_get_bytes, kMiB);

    const auto rails = link_from_description(
        "{proto} get into host memory length 1048576 zero-copy 50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_1:1");
    ASSERT_TRUE(rails);
    EXPECT_EQ(rails->transport, "rc_mlx5/mlx5_0:1");
    EXPECT_EQ(rails->link_class, LinkClass::kOneSided);
    EXPECT_GT(rails->max_get_bytes, kMiB);
}

TEST(LinkClassifierTest, SaysNothingWhenUcxSaysNothing) {
    EXPECT_FALSE(link_from_description(""));
    EXPECT_FALSE(link_from_description("{proto|init}"));
    EXPECT_FALSE(link_from_description("get into host memory length 1"));
    EXPECT_FALSE(link_from_description("get into host memory length 1 reconfigure 0.0 MB/s 122.08 us"));
}

}  // namespace
}  // namespace sluice::transport

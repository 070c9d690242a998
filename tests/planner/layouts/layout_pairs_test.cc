// Every catalogue with few layers: coverage, bytes and balance of trainer and worker layouts of every kind.
#include "tests/planner/layouts/layout_pairs.h"

#include <gtest/gtest.h>

namespace sluice::test {
namespace {

class LayoutPairsTest : public testing::TestWithParam<LayoutPairs> {};

TEST_P(LayoutPairsTest, FewLayers) {
    const PairFigures figures = check_pairs(GetParam(), false);
    EXPECT_GE(figures.pairs, static_cast<int>(GetParam().pools.size()));
}

INSTANTIATE_TEST_SUITE_P(Models, LayoutPairsTest, testing::ValuesIn(layout_pairs()),
                         [](const auto& instance) { return instance.param.name(); });

}  // namespace
}  // namespace sluice::test

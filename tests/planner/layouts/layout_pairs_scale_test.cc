// Every catalogue at full size: 20 pairs of layouts each or more.
#include "planner/builtin_models.h"
#include "tests/planner/layouts/layout_pairs.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>

namespace sluice::test {
namespace {

class LayoutPairsScale : public testing::TestWithParam<LayoutPairs> {};

TEST_P(LayoutPairsScale, FullSize) {
    const PairFigures figures = check_pairs(GetParam(), true);
    EXPECT_GE(figures.pairs, 20);
    std::printf("%-24s %d pairs, busiest trainer at most %.4f of the optimum (%s)\n", GetParam().name().c_str(),
                figures.pairs, figures.worst_balance, figures.worst_pair.c_str());
}

INSTANTIATE_TEST_SUITE_P(Models, LayoutPairsScale, testing::ValuesIn(layout_pairs()),
                         [](const auto& instance) { return instance.param.name(); });

TEST(LayoutPairs, NoCatalogueIsLeftOut) {
    std::set<std::string> models;
    for (const LayoutPairs& pairs : layout_pairs()) {
        models.insert(pairs.model);
    }
    EXPECT_EQ(models.size(), builtin_models().size());
    EXPECT_EQ(models.size(), 14U);
}

}  // namespace
}  // namespace sluice::test

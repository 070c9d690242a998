// Random chains of view operations, recorded and carried out, against NaiveTensor. The seeds follow GoogleTest's random
// seed: `--gtest_shuffle --gtest_repeat=N` runs N times as many chains, each time others.
#include "tests/planner/recording_chain.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace sluice::test {
namespace {

constexpr int kChains = 20000;

TEST(RecordingProperty, RandomChainsTransferWhatTheyRecord) {
    OperationCounts counts;
    const auto base = static_cast<std::uint64_t>(testing::UnitTest::GetInstance()->random_seed()) * kChains;
    for (std::uint64_t seed = base; seed < base + kChains; ++seed) {
        SCOPED_TRACE("chain " + std::to_string(seed));
        std::mt19937_64 engine(seed);
        ASSERT_NO_FATAL_FAILURE(check_recording_chain([&](std::uint64_t below) { return engine() % below; }, counts));
        ASSERT_FALSE(HasNonfatalFailure());
    }
    // Every operation was exercised: accepted often, and refused where it can be.
    for (const auto& [name, count] : counts) {
        EXPECT_GT(count.first, 100) << name;
    }
    EXPECT_EQ(counts.size(), 25U);
    for (const char* name : {"narrow", "slice", "select", "view", "permute", "view_dtype", "cat", "to"}) {
        EXPECT_GT(counts[name].second, 10) << name;
    }
}

}  // namespace
}  // namespace sluice::test

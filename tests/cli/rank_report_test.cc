#include "cli/rank_report.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::cli {
namespace {

RankReport worker(int rank, double seconds, double commit_s) {
    RankReport out;
    out.rank = rank;
    VersionReport& version = out.versions.emplace_back();
    version.version = 1;
    version.seconds = seconds;
    version.commit_s = commit_s;
    return out;
}

// Both land after one second; one compares for no time, the other for two seconds, for which the first waits in the commit.
TEST(RankReport, TheTimeOfAVersionIsWithoutTheComparisonOfEveryElement) {
    const std::vector<RankReport> reports = {worker(0, 3.125, 2.125), worker(1, 1.125, 0.125)};
    RunOutcome outcome;
    outcome.verify_mode = "full";
    const nlohmann::json full = sync_json(reports, outcome)["versions"][0];
    EXPECT_EQ(full["seconds"], 1.125);
    EXPECT_EQ(full["phases"]["commit"], 0.125);
    outcome.verify_mode = "digest";  // all of it is the sync's
    const nlohmann::json digest = sync_json(reports, outcome)["versions"][0];
    EXPECT_EQ(digest["seconds"], 3.125);
    EXPECT_EQ(digest["phases"]["commit"], 2.125);
}

}  // namespace
}  // namespace sluice::cli

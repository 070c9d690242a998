#include "planner/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TrainerLayout, ParsesAndPrints) {
    const auto layout = TrainerLayout::parse("tp=4,pp=2,dp=2,ep=8,stages=3/5");
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    EXPECT_EQ(layout->world_size(), 16);
    EXPECT_EQ(layout->to_string(), "tp=4,pp=2,dp=2,ep=8,stages=3/5");
    EXPECT_EQ(TrainerLayout::parse("format=megatron,etp=2,tp=2")->to_string(), "tp=2,etp=2,format=megatron");
    EXPECT_EQ(TrainerLayout::parse("fsdp=6,tp=2,dp=3")->world_size(), 36);
    EXPECT_EQ(TrainerLayout::parse("")->world_size(), 1);
}

TEST(TrainerLayout, EveryTextFormParsesBackToItself) {
    for (const char* text : {"tp=1", "tp=2,fsdp=4,dp=2", "tp=2,pp=3,dp=4,ep=4,etp=2,format=megatron,stages=1/1/1"}) {
        EXPECT_EQ(TrainerLayout::parse(text)->to_string(), text);
    }
    for (const char* text : {"tp=1", "tp=2,dp=3,ep=on,replicas=4,placement=round_robin,redundant=8"}) {
        EXPECT_EQ(WorkerLayout::parse(text)->to_string(), text);
    }
}

struct Refused {
    const char* text;
    const char* names;
};

TEST(TrainerLayout, RefusesByKeyAndValue) {
    const Refused cases[] = {{"tp=0", "tp=0"},
                             {"tp=-1", "tp=-1"},
                             {"tp=2x", "tp=2x"},
                             {"tp=99999999999", "tp=99999999999"},
                             {"tp", "'tp'"},
                             {"tp=", "'tp='"},
                             {"=2", "'=2'"},
                             {"tp=2,", "comma"},
                             {"tp=2,,pp=2", "''"},
                             {"tp=2,tp=2", "'tp'"},
                             {"cp=2", "'cp'"},
                             {"format=torch", "format=torch"},
                             {"ep=3,tp=2", "ep*etp=3"},
                             {"ep=2,etp=4,tp=4", "ep*etp=8"},
                             {"stages=1/2", "pp=1"},
                             {"pp=2,stages=4", "stages=4"},
                             {"pp=2,stages=4/x", "stages=4/x"},
                             {"pp=2,stages=4/", "stages=4/"},
                             {"pp=2,stages=4/0", "stages=4/0"},
                             {"fsdp=2,pp=2", "pp=2"},
                             {"fsdp=2,ep=2,tp=2", "ep=2"},
                             {"fsdp=2,etp=2,tp=2", "etp=2"},
                             {"fsdp=2,format=megatron", "format=megatron"},
                             {"tp=1048576,dp=1048576", "1048576 ranks"}};
    for (const Refused& c : cases) {
        const auto layout = TrainerLayout::parse(c.text);
        ASSERT_FALSE(layout.ok()) << c.text;
        EXPECT_EQ(layout.status().code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(layout.status().message(), HasSubstr(c.names)) << c.text;
        EXPECT_EQ(layout.status().message().find('\n'), std::string::npos);
    }
}

TEST(WorkerLayout, RefusesByKeyAndValue) {
    const Refused cases[] = {{"ep=yes", "ep=yes"},
                             {"placement=random", "placement=random"},
                             {"redundant=-1", "redundant=-1"},
                             {"pp=2", "'pp'"},
                             {"replicas=0", "replicas=0"},
                             {"tp=2 ", "tp=2 "},
                             {"dp=1.5", "dp=1.5"}};
    for (const Refused& c : cases) {
        const auto layout = WorkerLayout::parse(c.text);
        ASSERT_FALSE(layout.ok()) << c.text;
        EXPECT_EQ(layout.status().code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(layout.status().message(), HasSubstr(c.names)) << c.text;
    }
}

TEST(WorkerLayout, CountsRanks) {
    const auto layout = WorkerLayout::parse("tp=2,dp=3,ep=on,replicas=4,redundant=0");
    ASSERT_TRUE(layout.ok());
    EXPECT_EQ(layout->pool_size(), 6);
    EXPECT_EQ(layout->world_size(), 24);
    EXPECT_TRUE(layout->ep);
}

TEST(TrainerLayout, CoordinatesFollowTheRankOrder) {
    const TrainerLayout layout = *TrainerLayout::parse("tp=4,pp=2,dp=2,ep=4,etp=2");
    std::set<std::tuple<int, int, int>> dense;
    std::set<std::tuple<int, int, int, int>> experts;
    for (int rank = 0; rank < layout.world_size(); ++rank) {
        const auto c = layout.coordinates(rank);
        EXPECT_EQ(rank, c.tp + 4 * (c.dp + 2 * c.pp));
        EXPECT_EQ(rank % 8, c.etp + 2 * (c.ep + 4 * c.edp));
        dense.insert({c.tp, c.dp, c.pp});
        experts.insert({c.etp, c.ep, c.edp, c.pp});
    }
    EXPECT_EQ(dense.size(), 16U);
    EXPECT_EQ(experts.size(), 16U);
    const TrainerLayout fsdp = *TrainerLayout::parse("tp=2,fsdp=3,dp=2");
    const auto c = fsdp.coordinates(9);
    EXPECT_EQ(std::make_tuple(c.tp, c.fsdp, c.dp, c.pp), std::make_tuple(1, 1, 1, 0));
}

TEST(TrainerLayout, StagesTakeLayersAsEvenlyAsPossibleEarlierOnesOneMore) {
    EXPECT_THAT(*TrainerLayout::parse("pp=4")->stage_bounds(94), ElementsAre(0, 24, 48, 71, 94));
    EXPECT_THAT(*TrainerLayout::parse("pp=8")->stage_bounds(61), ElementsAre(0, 8, 16, 24, 32, 40, 47, 54, 61));
    EXPECT_THAT(*TrainerLayout::parse("pp=2,stages=3/5")->stage_bounds(8), ElementsAre(0, 3, 8));
    EXPECT_THAT(TrainerLayout::parse("pp=2,stages=3/5")->stage_bounds(9).status().message(), HasSubstr("9"));
    EXPECT_THAT(TrainerLayout::parse("pp=5")->stage_bounds(4).status().message(), HasSubstr("pp=5"));
}

}  // namespace
}  // namespace sluice

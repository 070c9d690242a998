// Gathers by a collective in whole syncs, with imitations of devices and of the collective.
#include "tests/exchange/sync_bed.h"
#include "tests/support/host_device.h"
#include "tests/support/log_guard.h"
#include "tests/support/thread_collective.h"
#include "trainer/gathered_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

namespace sluice::test {
namespace {

BedOptions collective_options(ThreadCollective& group, const std::string& trainer) {
    BedOptions out;
    out.trainer = trainer;
    out.workers = {"tp=2"};
    out.source = SourceKind::kGathered;
    out.settings.mapped = false;
    out.open_device = [lanes = out.settings.copy_threads + 1](int, bool) {
        return std::make_unique<HostDevice>(lanes);
    };
    out.open_group = [&group](int rank) { return group.member(rank); };
    return out;
}

BedOptions tied_options(ThreadCollective& group, const std::string& trainer, const std::string& worker) {
    BedOptions out = collective_options(group, trainer);
    out.model = "Qwen3-0.6B";
    out.fields = {{"num_hidden_layers", "2"},   {"hidden_size", "64"}, {"num_attention_heads", "4"},
                  {"num_key_value_heads", "2"}, {"head_dim", "16"},    {"vocab_size", "128"},
                  {"intermediate_size", "64"}};
    out.workers = {worker};
    return out;
}

int trainers_of(const std::string& trainer) { return TrainerLayout::parse(trainer)->world_size(); }

std::int64_t pulled_by_trainers(SyncBed& bed) {
    std::int64_t bytes = 0;
    for (int rank = 0; rank < bed.model().trainers; ++rank) {
        bytes += bed.trainer(rank).source<GatheredSource>().bytes_pulled();
    }
    return bytes;
}

/// The group outlives the bed's ranks.
struct CollectiveBed {
    explicit CollectiveBed(const std::string& trainer)
        : group(trainers_of(trainer)), bed(collective_options(group, trainer)) {
        bed.fabric().allow_device_memory();
        bed.create();
    }
    [[nodiscard]] std::int64_t pulled() { return pulled_by_trainers(bed); }

    ThreadCollective group;
    SyncBed bed;
};

/// A session in which trainers pull, and say why.
void expect_pulls(const BedOptions& options, const std::string& why) {
    const ExpectedLog warning("groups are gathered by pulls: " + why);
    SyncBed bed(options);
    bed.fabric().allow_device_memory();
    bed.create();
    bed.sync(1);
    bed.sync(2);
    EXPECT_GT(pulled_by_trainers(bed), 0);
}

class CollectiveGatherTest : public testing::TestWithParam<const char*> {};

TEST_P(CollectiveGatherTest, ThreeVersionsAreExactAndNothingIsPulledFromPeers) {
    CollectiveBed collective(GetParam());
    for (std::uint64_t version = 1; version <= 3 && !HasFailure(); ++version) {
        collective.bed.sync(version);
    }
    EXPECT_GT(collective.group.exchanges(), 0);
    EXPECT_EQ(collective.pulled(), 0);
    for (int rank = 0; rank < collective.bed.model().trainers; ++rank) {
        GatheredSource& source = collective.bed.trainer(rank).source<GatheredSource>();
        EXPECT_GT(source.transit_bytes(), 0);
        EXPECT_GE(collective.bed.trainer(rank).trainer().buffer_bytes(),
                  source.transit_bytes() + source.largest_group_bytes());
    }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CollectiveGatherTest,
                         testing::Values("tp=2", "tp=4,ep=4", "tp=2,pp=2", "tp=2,dp=2,ep=2", "fsdp=3",
                                         "tp=4,ep=2,etp=2"),
                         [](const auto& instance) {
                             std::string name = instance.param;
                             std::erase_if(name, [](char c) { return c == '=' || c == ','; });
                             return name;
                         });

// The last group of a model with tied embeddings is one small tensor, which a worker reads from one rank: the others only send their parts of it.
TEST(CollectiveGather, ARankThatOnlySendsTakesPart) {
    for (const auto& [trainer, worker] : {std::pair("fsdp=2", "tp=1"), std::pair("fsdp=4", "tp=2")}) {
        SCOPED_TRACE(trainer);
        ThreadCollective group(trainers_of(trainer));
        SyncBed bed(tied_options(group, trainer, worker));
        bed.fabric().allow_device_memory();
        bed.create();
        bool all_publish_all = true;
        for (int rank = 0; rank < bed.model().trainers; ++rank) {
            const RankPlan& plan = bed.trainer(rank).trainer().plan();
            all_publish_all = all_publish_all && plan.owner_route.group_order == plan.group_order;
        }
        EXPECT_FALSE(all_publish_all);
        for (std::uint64_t version = 1; version <= 3 && !testing::Test::HasFailure(); ++version) {
            bed.sync(version);
        }
        EXPECT_EQ(pulled_by_trainers(bed), 0);
    }
}

TEST(CollectiveGather, AFailedExchangeFailsTheVersionAndTheNextOnesArePulled) {
    CollectiveBed collective("tp=2");
    collective.bed.sync(1);
    const ExpectedLog warning("gathered by pulls from now on");
    collective.group.fail_exchange(3);
    for (const Status& status : collective.bed.try_sync(2)) {
        EXPECT_THAT(status.message(), testing::HasSubstr("an exchange was made to fail"));
    }
    EXPECT_EQ(collective.bed.worker(0).worker().version(), 1u);
    const int before = collective.group.exchanges();
    collective.bed.sync(3);
    collective.bed.sync(4);
    EXPECT_GT(collective.pulled(), 0);
    EXPECT_EQ(collective.group.exchanges(), before);
}

// A rank that has failed comes to no exchange: whoever waits for it there is called off, long before its deadline.
TEST(CollectiveGather, APeerThatFailsElsewhereEndsTheExchangeOfTheOthers) {
    CollectiveBed collective("tp=2");
    collective.bed.sync(1);
    const ExpectedLog warning("gathered by pulls from now on");
    auto& device = static_cast<HostDevice&>(*collective.bed.trainer(1).device());
    std::atomic<int> runs{0};
    device.before_run = [&runs] { return ++runs == 3 ? internal_error("the device has a fault") : ok_status(); };
    const auto begin = std::chrono::steady_clock::now();
    for (const Status& status : collective.bed.try_sync(2)) {
        EXPECT_THAT(status.message(), testing::HasSubstr("the device has a fault"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    collective.bed.sync(3);
    EXPECT_GT(collective.pulled(), 0);
}

TEST(CollectiveGather, AfterAFailedVersionTheNextSessionPulls) {
    ThreadCollective group(2);
    const BedOptions options = collective_options(group, "tp=2");
    {
        SyncBed bed(options);
        bed.fabric().allow_device_memory();
        bed.create();
        const ExpectedLog warning("gathered by pulls from now on");
        group.fail_exchange(1);
        EXPECT_FALSE(bed.try_sync(1).front().ok());
    }
    expect_pulls(options, "the group that trainer 0 was given has failed before");
}

TEST(CollectiveGather, AfterAFailedSetUpTheNextSessionPulls) {
    ThreadCollective group(2);
    const BedOptions options = collective_options(group, "tp=2");
    {
        BedOptions failing = options;
        failing.open_device = [open = options.open_device](int rank, bool worker) {
            auto device = open(rank, worker);
            if (worker) {
                static_cast<HostDevice&>(*device).before_compile = [] { return internal_error("out of order"); };
            }
            return device;
        };
        SyncBed bed(failing);
        bed.fabric().allow_device_memory();
        EXPECT_FALSE(bed.try_create().front().ok());
    }
    expect_pulls(options, "the group that trainer 0 was given has failed before");
}

TEST(CollectiveGather, AllPullWhenATrainerHasNoGroup) {
    ThreadCollective group(2);
    BedOptions options = collective_options(group, "tp=2");
    options.open_group = [&group](int rank) { return rank == 0 ? group.member(rank) : nullptr; };
    expect_pulls(options, "trainer 1 was given no group to gather with");
}

TEST(CollectiveGather, AGroupWithoutALaneOfItsOwnIsRefused) {
    ThreadCollective group(2);
    BedOptions options;
    options.source = SourceKind::kGathered;
    options.settings.mapped = false;
    options.open_device = [lanes = options.settings.copy_threads](int, bool) {
        return std::make_unique<HostDevice>(lanes);
    };
    options.open_group = [&group](int rank) { return group.member(rank); };
    SyncBed bed(options);
    bed.fabric().allow_device_memory();
    for (const Status& status : bed.try_create()) {
        EXPECT_THAT(status.message(), testing::HasSubstr("one lane more than copy threads"));
    }
}

}  // namespace
}  // namespace sluice::test

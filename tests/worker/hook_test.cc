// What a worker's owner sees of a sync: hooks, version, dirtiness.
#include "tests/exchange/sync_bed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

namespace sluice::test {
namespace {

ParameterId parameter_named(const Demand& demand, const std::string& end) {
    const auto at = std::find_if(demand.parameters.begin(), demand.parameters.end(),
                                 [&](const Parameter& p) { return p.name.ends_with(end); });
    EXPECT_NE(at, demand.parameters.end()) << end;
    return static_cast<ParameterId>(at - demand.parameters.begin());
}

GroupId group_of(const BedModel& model, const Demand& demand, ParameterId parameter) {
    const auto at = std::find_if(demand.records.begin(), demand.records.end(),
                                 [&](const CopyRecord& r) { return r.parameter == parameter; });
    return model.catalogue[at->tensor].group;
}

// Once per group, and every byte of the group's parameters is right when it runs.
TEST(WorkerHookTest, RunsOncePerGroupWhenAllOfItsBytesAreRight) {
    for (const std::string trainer : {"tp=2,pp=2", "tp=1"}) {
        BedOptions options;
        options.trainer = trainer;
        options.workers = {"tp=2,ep=on"};
        SyncBed bed(options);
        std::vector<std::map<GroupId, int>> calls(2);
        for (int w = 0; w < 2; ++w) {
            BedRank& rank = bed.worker(w);
            rank.hooks.on_group = [&bed, &rank, &calls, w](std::uint64_t version, GroupId group) {
                ++calls[static_cast<std::size_t>(w)][group];
                const auto expected = bed.model().parameters(rank.demand(), version);
                for (const CopyRecord& record : rank.demand().records) {
                    if (bed.model().catalogue[record.tensor].group == group) {
                        const auto& want = expected[static_cast<std::size_t>(record.parameter)];
                        EXPECT_TRUE(std::equal(want.begin(), want.end(), rank.parameter(record.parameter)))
                            << rank.demand().parameters[static_cast<std::size_t>(record.parameter)].name;
                    }
                }
                return ok_status();
            };
        }
        bed.create();
        for (std::uint64_t version = 1; version <= 3; ++version) {
            bed.sync(version);
            for (auto& of_worker : calls) {
                EXPECT_EQ(of_worker.size(), static_cast<std::size_t>(bed.model().catalogue.groups()));
                for (const auto& [group, count] : of_worker) {
                    EXPECT_EQ(count, 1) << "group " << group;
                }
                of_worker.clear();
            }
        }
    }
}

// D07: a value derived from two parameters of a layer, also when they come from different trainers.
TEST(WorkerHookTest, DerivedValuesFitTheNewParameters) {
    BedOptions options;
    options.trainer = "tp=2,ep=2";
    options.workers = {"tp=1"};
    SyncBed bed(options);
    BedRank& rank = bed.worker(0);
    const auto sum_of = [](const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < std::min(a_bytes, b_bytes); ++i) {
            sum = sum * 31 + static_cast<std::uint64_t>(a[i]) * static_cast<std::uint64_t>(b[i]);
        }
        return sum;
    };
    std::map<GroupId, std::uint64_t> derived;
    rank.hooks.on_group = [&](std::uint64_t, GroupId group) {
        const Demand& demand = rank.demand();
        const ParameterId a = parameter_named(demand, "layers.1.self_attn.qkv_proj.weight");
        const ParameterId b = parameter_named(demand, "layers.1.mlp.experts.w13_weight");
        if (group == group_of(bed.model(), demand, a)) {
            derived[group] = sum_of(
                rank.parameter(a), static_cast<std::size_t>(demand.parameters[static_cast<std::size_t>(a)].bytes()),
                rank.parameter(b), static_cast<std::size_t>(demand.parameters[static_cast<std::size_t>(b)].bytes()));
        }
        return ok_status();
    };
    bed.create();
    std::set<std::uint64_t> values;
    for (std::uint64_t version = 1; version <= 3; ++version) {
        bed.sync(version);
        const auto expected = bed.model().parameters(rank.demand(), version);
        const auto& a =
            expected[static_cast<std::size_t>(parameter_named(rank.demand(), "layers.1.self_attn.qkv_proj.weight"))];
        const auto& b =
            expected[static_cast<std::size_t>(parameter_named(rank.demand(), "layers.1.mlp.experts.w13_weight"))];
        ASSERT_EQ(derived.size(), 1u);
        EXPECT_EQ(derived.begin()->second, sum_of(a.data(), a.size(), b.data(), b.size()));
        values.insert(derived.begin()->second);
    }
    EXPECT_EQ(values.size(), 3u);
}

TEST(WorkerHookTest, AnErrorFailsTheSyncOnAllRanksAndNotTheNext) {
    for (const int nth : {0, 1, 4}) {
        BedOptions options;
        options.workers = {"tp=2"};
        SyncBed bed(options);
        int calls = 0;
        bed.worker(1).hooks.on_group = [&](std::uint64_t version, GroupId) {
            return version == 2 && calls++ == nth ? internal_error("no room for the kernel format") : ok_status();
        };
        bed.create();
        bed.sync(1);
        for (const Status& status : bed.try_sync(2)) {
            EXPECT_NE(status.message().find("no room for the kernel format"), std::string::npos) << status.message();
            EXPECT_NE(status.message().find("hook of group"), std::string::npos) << status.message();
        }
        for (int w = 0; w < 2; ++w) {
            EXPECT_EQ(bed.worker(w).worker().version(), 1u);
            EXPECT_TRUE(bed.worker(w).worker().dirty());
        }
        EXPECT_EQ(calls, nth + 1) << "no hook runs after the one that failed";
        bed.sync(3);
    }
}

TEST(WorkerHookTest, BeforeCommitCanRefuseAVersionForAll) {
    BedOptions options;
    options.workers = {"tp=1,replicas=2"};
    SyncBed bed(options);
    bed.worker(1).hooks.before_commit = [](std::uint64_t version) {
        return version == 2 ? Status(StatusCode::kMismatch, "the checksum of the model is another") : ok_status();
    };
    bed.create();
    bed.sync(1);
    for (const Status& status : bed.try_sync(2)) {
        EXPECT_EQ(status.code(), StatusCode::kMismatch);
        EXPECT_NE(status.message().find("the checksum of the model"), std::string::npos) << status.message();
    }
    EXPECT_EQ(bed.worker(0).worker().version(), 1u);
    EXPECT_EQ(bed.worker(1).worker().version(), 1u);
    bed.sync(3);
}

// V06: the number never runs ahead of the data, never falls, and is there at any time.
TEST(WorkerVersionTest, AnotherThreadSeesTheOldNumberUntilTheCommit) {
    BedOptions options;
    options.workers = {"tp=1"};
    SyncBed bed(options);
    std::atomic<bool> over{false};
    std::atomic<bool> fell{false};
    std::atomic<long> polls{0};
    BedRank& rank = bed.worker(0);
    rank.hooks.on_group = [&](std::uint64_t version, GroupId) {
        EXPECT_EQ(rank.worker().version(), version - 1) << "during the pull";
        EXPECT_TRUE(rank.worker().dirty());
        return ok_status();
    };
    rank.hooks.before_commit = [&](std::uint64_t version) {
        EXPECT_EQ(rank.worker().version(), version - 1);
        return ok_status();
    };
    bed.create();
    EXPECT_EQ(rank.worker().version(), 0u);
    EXPECT_FALSE(rank.worker().dirty());
    std::thread watcher([&] {
        std::uint64_t last = 0;
        while (!over) {
            const std::uint64_t now = rank.worker().version();
            fell = fell || now < last;
            last = now;
            ++polls;
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        EXPECT_EQ(rank.worker().version(), 4u);
    });
    for (std::uint64_t version = 1; version <= 4; ++version) {
        bed.sync(version);
    }
    over = true;
    watcher.join();
    EXPECT_FALSE(fell);
    EXPECT_GT(polls, 0);
}

}  // namespace
}  // namespace sluice::test

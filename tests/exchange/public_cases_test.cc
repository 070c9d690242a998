// What went wrong for people elsewhere in whole syncs, by the names of the collection of cases. Others are tests of their own:
// H03 and H04 in tests/trainer/credit_test.cc, D07 in tests/worker/hook_test.cc, L20 in sync_test.cc, C11 in
// big_offsets_test.cc, O07 in tests/planner/planning_scale_test.cc; those of layouts are in tests/planner/cases_test.cc.
#include "tests/exchange/sync_bed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using PathChoice = RouteOptions::PathChoice;

// Ranks come to set-up in any order and at any time; each worker's first owner is another one.
TEST(Cases, H05_CrossedConnectionOrder) {
    std::mt19937_64 random(5);
    for (int round = 0; round < 50; ++round) {
        BedOptions options;
        options.trainer = "tp=2";
        options.workers = {"tp=2"};
        options.fields = {{"num_hidden_layers", "1"},
                          {"hidden_size", "16"},
                          {"num_attention_heads", "2"},
                          {"num_key_value_heads", "2"},
                          {"head_dim", "8"},
                          {"vocab_size", "16"},
                          {"num_experts", "2"},
                          {"moe_intermediate_size", "8"}};
        const bool tcp = round % 5 == 0;
        SyncBed bed(options, tcp ? Network::kUcxTcp : Network::kFakeOneSided);
        std::vector<std::chrono::milliseconds> delays;
        for (int rank = 0; rank < bed.size(); ++rank) {
            delays.emplace_back(random() % 12);
        }
        bed.delay_create = [&](int rank) { std::this_thread::sleep_for(delays[static_cast<std::size_t>(rank)]); };
        bed.create();
        bed.sync(1);
        ASSERT_FALSE(HasFailure()) << "round " << round;
    }
}

// A get over TCP needs the owner; its caller's thread computes meanwhile and never calls us.
TEST(Cases, H11_ProgressWhileTheTrainerComputes) {
    BedOptions options;
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    SyncBed bed(options, Network::kUcxTcp);
    std::atomic<int> landed{0};
    std::atomic<int> landed_while_busy{0};
    const int groups = bed.model().catalogue.groups();
    bed.worker(0).hooks.on_group = [&](std::uint64_t, GroupId) {
        ++landed;
        return ok_status();
    };
    // Before the last group is published, all others are, and are pulled while this thread is busy elsewhere.
    bed.trainer(0).trainer_options.before_publish = [&](std::uint64_t, int position) {
        if (position == groups - 1) {
            const auto limit = std::chrono::steady_clock::now() + 5s;
            while (landed < groups - 1 && std::chrono::steady_clock::now() < limit) {
                std::this_thread::sleep_for(1ms);
            }
            landed_while_busy = landed.load();
        }
    };
    bed.create();
    for (std::uint64_t version = 1; version <= 3; ++version) {
        landed = 0;
        bed.sync(version);
        EXPECT_EQ(landed_while_busy, groups - 1);
    }
}

// One worker needs nearly all of one trainer and little of the others.
TEST(Cases, H13_SkewedPlan) {
    BedOptions options;
    options.trainer = "pp=4,stages=1/1/1/9";
    options.workers = {"tp=1", "tp=2,ep=on", "tp=4,ep=on"};
    options.fields = {{"num_hidden_layers", "12"},
                      {"hidden_size", "32"},
                      {"num_attention_heads", "4"},
                      {"num_key_value_heads", "4"},
                      {"head_dim", "8"},
                      {"vocab_size", "64"},
                      {"num_experts", "4"},
                      {"moe_intermediate_size", "16"}};
    options.settings.inflight_bytes = 2 * options.route.chunk_bytes;
    for (const SourceKind source : {SourceKind::kResident, SourceKind::kGathered}) {
        options.source = source;
        SyncBed bed(options);
        bed.create();
        for (std::uint64_t version = 1; version <= 3; ++version) {
            bed.sync(version);
        }
    }
}

// A row-parallel cut has a run per row, down to single elements: exact bytes, by any path.
TEST(Cases, L15_StridedViewsByEveryPath) {
    for (const PathChoice path : {PathChoice::kAuto, PathChoice::kDirect, PathChoice::kPacked}) {
        BedOptions options;
        options.model = "Llama-3.1-8B";
        options.trainer = "tp=1";
        options.workers = {"tp=8"};
        options.fields = {{"num_hidden_layers", "1"},   {"hidden_size", "64"}, {"num_attention_heads", "8"},
                          {"num_key_value_heads", "8"}, {"vocab_size", "64"},  {"intermediate_size", "8"}};
        options.route.path = path;
        SyncBed bed(options);
        bed.create();
        bed.sync(1);
        bed.sync(2);
    }
}

// O03 and O04: tensors, and single rows, above every limit are cut and streamed; peaks stay within the limits.
TEST(Cases, O03_O04_LimitsHoldWhateverTheTensors) {
    for (const int ring : {1, 2, 4}) {
        for (const PathChoice path : {PathChoice::kPacked, PathChoice::kAuto}) {
            BedOptions options;
            options.route.chunk_bytes = 1024;  // a row of the embedding has 2 KiB
            options.route.path = path;
            options.model = "Qwen3-8B";
            options.trainer = "tp=2";
            options.workers = {"tp=1"};
            options.fields = {{"num_hidden_layers", "1"},   {"hidden_size", "1024"}, {"num_attention_heads", "4"},
                              {"num_key_value_heads", "2"}, {"head_dim", "16"},      {"vocab_size", "64"},
                              {"intermediate_size", "34"}};
            options.settings.staging_bytes = ring * options.route.chunk_bytes;
            options.settings.inflight_bytes = ring * options.route.chunk_bytes;
            options.settings.chunk_bytes = options.route.chunk_bytes;
            options.settings.slots = ring;
            SyncBed bed(options);
            bed.create();
            bed.sync(1);
            bed.sync(2);
            EXPECT_LE(bed.worker(0).worker().staging_peak(), options.settings.staging_bytes);
            for (int trainer = 0; trainer < 2; ++trainer) {
                EXPECT_LE(bed.trainer(trainer).trainer().buffer_bytes(), ring * options.route.chunk_bytes);
            }
        }
    }
}

// The hook moves what has landed into a layout and to a place of its own: later versions land in load layout again.
TEST(Cases, D06_KernelLayoutsInTheHook) {
    BedOptions options;
    options.workers = {"tp=1"};
    SyncBed bed(options);
    BedRank& worker = bed.worker(0);
    std::vector<std::vector<std::byte>> kernel_form;
    worker.hooks.before_commit = [&](std::uint64_t) {
        kernel_form.clear();
        for (std::size_t i = 0; i < worker.demand().parameters.size(); ++i) {
            const Parameter& parameter = worker.demand().parameters[i];
            const std::byte* at = worker.parameter(static_cast<ParameterId>(i));
            kernel_form.emplace_back(at, at + parameter.bytes());
            std::reverse(kernel_form.back().begin(), kernel_form.back().end());
        }
        return ok_status();
    };
    bed.create();
    for (std::uint64_t version = 1; version <= 3; ++version) {
        bed.sync(version);
        const auto expected = bed.model().parameters(worker.demand(), version);
        ASSERT_EQ(kernel_form.size(), expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(std::equal(expected[i].rbegin(), expected[i].rend(), kernel_form[i].begin()));
        }
    }
}

// One of four replicas sends at a tenth of the others' speed: they take over most of its part, within the same version.
TEST(Cases, P04_OneSlowReplica) {
    BedOptions options;
    options.trainer = "dp=4";
    options.workers = {"tp=1"};
    options.settings.inflight_bytes = 8 * options.route.chunk_bytes;  // of a model of a hundred chunks
    SyncBed bed(options);
    transport::FakeLink link;
    link.latency = 1ms;
    bed.fabric().set_default_link(link);
    bed.create();
    bed.sync(1);
    link.latency = 40ms;  // as many gets at once as before, each forty times as long
    bed.fabric().set_link(bed.fake_id(1), bed.fake_id(4), link);
    bed.sync(2);
    std::int64_t slow = 0;
    std::int64_t others = 0;
    for (const LinkTraffic& traffic : bed.worker(0).worker().stats().links) {
        (traffic.trainer_rank == 1 ? slow : others) += traffic.bytes;
    }
    EXPECT_GT(slow, 0);
    EXPECT_LT(slow, others / 6) << "a third of what each of the others sends, or less";
}

}  // namespace
}  // namespace sluice::test

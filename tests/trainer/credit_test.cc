// What a trainer holds and whom it waits for.
#include "tests/exchange/sync_bed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

// A slow worker must not make a trainer gather further than its credit.
TEST(TrainerCreditTest, NeverHoldsMoreThanCreditAndOneMore) {
    for (const int credit : {1, 2}) {
        for (const char* trainer : {"tp=2", "tp=2,pp=2"}) {
            SCOPED_TRACE(trainer);
            BedOptions options;
            options.fields = {{"num_hidden_layers", "6"},
                              {"hidden_size", "32"},
                              {"num_attention_heads", "4"},
                              {"num_key_value_heads", "2"},
                              {"head_dim", "8"},
                              {"vocab_size", "64"},
                              {"num_experts", "2"},
                              {"moe_intermediate_size", "16"},
                              {"intermediate_size", "32"}};
            options.trainer = trainer;
            options.workers = {"tp=1,replicas=2"};
            options.source = SourceKind::kGathered;
            options.settings.credit = credit;
            SyncBed bed(options);
            bed.worker(1).worker_options.delay_per_chunk = 1ms;
            bed.create();
            for (std::uint64_t version = 1; version <= 2; ++version) {
                bed.sync(version);
                for (int t = 0; t < bed.model().trainers; ++t) {
                    EXPECT_LE(bed.trainer(t).trainer().stats().peak_groups, credit + 1);
                    EXPECT_GE(bed.trainer(t).trainer().stats().peak_groups, 1);
                }
            }
        }
    }
}

TEST(TrainerCreditTest, ALateOwnerHoldsNobodyUpWhoDoesNotNeedIt) {
    // Stage 1 is late: groups of stage 0 are read and released meanwhile (H03).
    BedOptions options;
    options.trainer = "pp=2";
    options.workers = {"tp=1"};
    options.source = SourceKind::kGathered;
    SyncBed bed(options);
    std::atomic<bool> first_is_through{false};
    bed.trainer(1).trainer_options.before_publish = [&](std::uint64_t, int position) {
        if (position == 0) {
            const auto limit = std::chrono::steady_clock::now() + 10s;
            while (!first_is_through && std::chrono::steady_clock::now() < limit) {
                std::this_thread::sleep_for(1ms);
            }
            EXPECT_TRUE(first_is_through) << "stage 0 waits for stage 1";
        }
    };
    bed.trainer(0).trainer_options.before_publish = [&](std::uint64_t, int position) {
        // With credit 1 its third group is published after the first was released.
        first_is_through = first_is_through || position == 2;
    };
    bed.create();
    for (std::uint64_t version = 1; version <= 3; ++version) {
        first_is_through = false;
        bed.sync(version);
    }
}

TEST(TrainerCreditTest, AnOwnerThatPublishesLateIsWaitedFor) {
    for (const SourceKind source : {SourceKind::kResident, SourceKind::kGathered}) {
        BedOptions options;
        options.workers = {"tp=2"};
        options.source = source;
        SyncBed bed(options);
        bed.trainer(1).trainer_options.before_publish = [](std::uint64_t version, int) {
            if (version != 2) {
                std::this_thread::sleep_for(20ms);
            }
        };
        bed.create();
        for (std::uint64_t version = 1; version <= 3; ++version) {
            bed.sync(version);
        }
    }
}

// H04: a trainer of which nobody reads anything ends its syncs without waiting for anybody to read.
TEST(TrainerCreditTest, MoreTrainersThanConsumers) {
    for (const SourceKind source : {SourceKind::kResident, SourceKind::kGathered}) {
        BedOptions options;
        options.trainer = "tp=1,dp=4";
        options.workers = {"tp=1"};
        options.route.chunk_bytes = 4 << 20;  // fewer chunks than would keep all busy
        options.settings.staging_bytes = 8 << 20;
        options.source = source;
        SyncBed bed(options);
        bed.create();
        for (std::uint64_t version = 1; version <= 3; ++version) {
            bed.sync(version);
        }
    }
}

TEST(TrainerCreditTest, AnyNumberOfTrainersServesAnyNumberOfWorkers) {
    const std::vector<std::pair<std::string, std::string>> layouts = {
        {"tp=1", "tp=1,replicas=4"}, {"pp=3", "tp=2"}, {"tp=2,pp=2", "tp=1"}, {"tp=1,dp=3", "tp=2,ep=on"}};
    for (const auto& [trainer, worker] : layouts) {
        SCOPED_TRACE(trainer + " -> " + worker);
        BedOptions options;
        options.trainer = trainer;
        options.workers = {worker};
        SyncBed bed(options);
        bed.create();
        bed.sync(1);
        bed.sync(2);
    }
}

}  // namespace
}  // namespace sluice::test

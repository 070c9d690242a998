// Syncs that fail, over the in-process network: every rank learns the first cause, no version advances, and the next sync works.
#include "tests/exchange/sync_bed.h"
#include "tests/support/log_guard.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

namespace sluice::test {
namespace {

using PathChoice = RouteOptions::PathChoice;

/// All ranks failed with the same cause, no worker has advanced from `version`, and those that had begun say that they are dirty.
void expect_failed(SyncBed& bed, const std::vector<Status>& statuses, const std::string& cause, std::uint64_t version) {
    for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
        EXPECT_FALSE(statuses[rank].ok()) << "rank " << rank;
        EXPECT_NE(statuses[rank].message().find(cause), std::string::npos)
            << "rank " << rank << ": " << statuses[rank].message();
    }
    for (int worker = 0; worker < bed.model().workers; ++worker) {
        EXPECT_EQ(bed.worker(worker).worker().version(), version);
        EXPECT_TRUE(bed.worker(worker).worker().dirty());
    }
}

struct FailureCase {
    std::string name;
    SourceKind source;
    PathChoice path;
    bool trainer_reads;  ///< The get that fails is one of a gather.
};
void PrintTo(const FailureCase& c, std::ostream* out) { *out << c.name; }

// So few gets that each can have its turn.
std::vector<std::pair<std::string, std::string>> one_small_layer() {
    return {{"num_hidden_layers", "1"},
            {"hidden_size", "32"},
            {"num_attention_heads", "4"},
            {"num_key_value_heads", "2"},
            {"head_dim", "8"},
            {"vocab_size", "16"},
            {"num_experts", "2"},
            {"moe_intermediate_size", "16"},
            {"intermediate_size", "32"}};
}

class FailedGetTest : public testing::TestWithParam<FailureCase> {};

// C01, H09: whichever get of the plan it is.
TEST_P(FailedGetTest, EveryGetInTurn) {
    const FailureCase& the_case = GetParam();
    BedOptions options;
    options.fields = one_small_layer();
    options.workers = {"tp=1"};
    options.source = the_case.source;
    options.route.path = the_case.path;
    SyncBed bed(options);
    bed.create();
    bed.sync(1);
    const int reader = the_case.trainer_reads ? 1 : bed.model().trainers;
    std::uint64_t version = 1;
    std::uint64_t committed = 1;
    int failures = 0;
    for (int nth = 1;; ++nth) {
        ASSERT_LT(nth, 1000) << "the plan has too many gets for this test";
        bed.fabric().fail_get(bed.fake_id(reader), nth);
        const std::vector<Status> statuses = bed.try_sync(++version);
        if (statuses[0].ok()) {
            bed.expect_right(version);
            break;  // it has fewer gets
        }
        ++failures;
        expect_failed(bed, statuses, "a get was made to fail", committed);
        bed.sync(++version);
        committed = version;
        if (HasFailure()) {
            break;
        }
    }
    EXPECT_GE(failures, 2);
    bed.fabric().fail_get(bed.fake_id(reader), 0);
    bed.sync(++version);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, FailedGetTest,
    testing::Values(FailureCase{"resident_direct", SourceKind::kResident, PathChoice::kDirect, false},
                    FailureCase{"resident_packed", SourceKind::kResident, PathChoice::kPacked, false},
                    FailureCase{"gathered_worker", SourceKind::kGathered, PathChoice::kAuto, false},
                    FailureCase{"gathered_trainer", SourceKind::kGathered, PathChoice::kAuto, true}),
    [](const auto& instance) { return instance.param.name; });

// The race that the lease forbids, on purpose: ThreadSanitizer need not report it.
__attribute__((no_sanitize("thread"))) void damage_bytes(std::span<std::byte> memory) {
    auto* bytes = reinterpret_cast<unsigned char*>(memory.data());
    for (std::size_t i = 0; i < memory.size(); ++i) {
        bytes[i] = static_cast<unsigned char>(bytes[i] ^ 0x10U);
    }
}

TEST(SyncFailureTest, BytesThatChangeAfterHashingAreFoundAndNamed) {
    BedOptions options;
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    options.route.path = PathChoice::kDirect;
    SyncBed bed(options);
    // The reads come long after the publish and its hashes.
    std::atomic<bool> damage{false};
    bed.worker(0).worker_options.delay_per_chunk = std::chrono::milliseconds(1);
    bed.trainer(0).trainer_options.before_publish = [&](std::uint64_t, int position) {
        if (damage && position == 3) {
            // Group 0 was published first; one of the last to be read of what was hashed by now.
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
            damage_bytes(bed.trainer(0).memory());
        }
    };
    bed.create();
    bed.sync(1);
    damage = true;
    const auto statuses = bed.try_sync(2);
    expect_failed(bed, statuses, "has checksum", 1);
    for (const Status& status : statuses) {
        EXPECT_EQ(status.code(), StatusCode::kMismatch);
        EXPECT_NE(status.message().find("trainer 0"), std::string::npos) << status.message();
    }
    EXPECT_GE(bed.worker(0).worker().mismatched_chunks(), 1);
    damage = false;
    bed.sync(3);
}

TEST(SyncFailureTest, WithoutHashesDamageIsNotLookedFor) {
    BedOptions options;
    options.hashes = false;
    SyncBed bed(options);
    bed.create();
    for (std::uint64_t version = 1; version <= 3; ++version) {
        bed.sync(version);
    }
}

// A rank that dies between or in syncs fails the one that is open; those who are left go on.
class DeathTest : public testing::TestWithParam<int> {};

TEST_P(DeathTest, OfAWorkerFailsItsSyncAndLeavesTheOthersAtWork) {
    BedOptions options;
    options.workers = {"tp=1,replicas=2"};
    options.source = GetParam() % 2 == 0 ? SourceKind::kResident : SourceKind::kGathered;
    options.settings.heartbeat_dead_after = std::chrono::seconds(1);  // the dead rank itself learns of it only so
    SyncBed bed(options);
    const int dead = bed.model().trainers + 1;
    int groups = 0;
    bed.rank(dead).hooks.on_group = [&](std::uint64_t version, GroupId) {
        if (version == 2 && groups++ == GetParam() / 2) {
            bed.fabric().kill(bed.fake_id(dead));
        }
        return ok_status();
    };
    const ExpectedLog lost("is lost");
    bed.create();
    bed.sync(1);
    const auto statuses = bed.try_sync(2);
    for (int rank = 0; rank < dead; ++rank) {
        const Status& status = statuses[static_cast<std::size_t>(rank)];
        EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
        EXPECT_EQ(status.peer(), dead) << status.message();
        EXPECT_NE(status.message().find("worker 1"), std::string::npos) << status.message();
    }
    EXPECT_EQ(bed.worker(0).worker().version(), 1u);
    for (std::uint64_t version = 3; version <= 4; ++version) {
        const auto next = bed.try_sync(version, {dead});
        for (const Status& status : next) {
            EXPECT_TRUE(status.ok()) << status.message();
        }
        EXPECT_EQ(bed.worker(0).wrong_parameters(version), std::vector<std::string>{});
        EXPECT_EQ(bed.worker(0).worker().version(), version);
    }
}

INSTANTIATE_TEST_SUITE_P(Points, DeathTest, testing::Range(0, 6));

// Nobody reads of the trainer any more whose only worker has died: its syncs are empty and right, also with hashes (H04).
TEST(DeathTest, OfTheOnlyReaderLeavesATrainerWithNothingToDo) {
    BedOptions options;
    options.trainer = "tp=1,dp=2";
    options.workers = {"tp=1"};
    options.settings.heartbeat_dead_after = std::chrono::seconds(1);
    SyncBed bed(options);
    const ExpectedLog lost("is lost");
    bed.create();
    bed.sync(1);
    bed.fabric().kill(bed.fake_id(2));
    for (std::uint64_t version = 2; version <= 6; ++version) {
        const auto statuses = bed.try_sync(version, {2});
        if (version > 2) {
            EXPECT_TRUE(statuses[0].ok()) << statuses[0].message();
            EXPECT_TRUE(statuses[1].ok()) << statuses[1].message();
        }
    }
}

TEST(SyncFailureTest, ARankThatCannotPrepareEndsSetUpOnAllRanks) {
    BedOptions options;
    options.fields = one_small_layer();
    options.workers = {"tp=3"};
    SyncBed bed(options);
    for (const Status& status : bed.try_create()) {
        EXPECT_EQ(status.code(), StatusCode::kPlanRefused);
        EXPECT_NE(status.message().find("worker 0"), std::string::npos) << status.message();
    }
}

// All ranks are told, and nobody waits.
void expect_refused(SyncBed& bed, const std::vector<std::string>& parts) {
    for (const Status& status : bed.try_create()) {
        EXPECT_FALSE(status.ok());
        for (const std::string& part : parts) {
            EXPECT_NE(status.message().find(part), std::string::npos) << part << ": " << status.message();
        }
    }
}

TEST(SyncFailureTest, ALoaderThatLeavesAHoleIsRefusedUnlessItMay) {
    for (const bool partial : {false, true}) {
        BedOptions options;
        options.fields = one_small_layer();
        SyncBed bed(options);
        for (int worker = 0; worker < bed.model().workers; ++worker) {
            bed.worker(worker).worker_options.partial = partial;
            bed.worker(worker).change_demand = [](Demand& demand) { demand.records.pop_back(); };
        }
        if (partial) {
            bed.create();
        } else {
            expect_refused(bed, {"worker 0", "written by no tensor"});
        }
    }
}

TEST(SyncFailureTest, ASourceThatIsShorterThanItsOwnershipIsRefused) {
    BedOptions options;
    options.fields = one_small_layer();
    SyncBed bed(options);
    bed.trainer(1).missing_bytes = 1;
    expect_refused(bed, {"trainer 1", "segment 0", "Ownership"});
}

TEST(SyncFailureTest, StagingThatHoldsNoChunkIsRefused) {
    for (const SourceKind source : {SourceKind::kResident, SourceKind::kGathered}) {
        BedOptions options;
        options.source = source;
        options.settings.staging_bytes = 1024;
        SyncBed bed(options);
        expect_refused(bed, {"staging 1024", "SLUICE_STAGING_BYTES"});
    }
}

TEST(SyncFailureTest, AClosedRankRefuses) {
    SyncBed bed(BedOptions{});
    bed.create();
    bed.sync(1);
    bed.close();
    bed.each_rank([](BedRank& rank) { EXPECT_EQ(rank.sync(2).code(), StatusCode::kInvalidArgument); });
}

// Reads that are slow to end after a failure, but do end, cost nobody its link.
TEST(SyncFailureTest, AFailedVersionMayTakeLongToDrain) {
    BedOptions options;
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    options.route.path = PathChoice::kDirect;
    options.settings.inflight_bytes = 32 << 10;
    SyncBed bed(options);
    bed.create();
    bed.sync(1);
    bed.fabric().set_link(bed.fake_id(0), bed.fake_id(1), {.bytes_per_second = 15e3});
    bed.fabric().fail_get(bed.fake_id(1), 1);
    const auto begin = std::chrono::steady_clock::now();
    for (const Status& status : bed.try_sync(2)) {
        EXPECT_NE(status.message().find("a get was made to fail"), std::string::npos) << status.message();
    }
    EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1200)) << "it was not long";
    bed.fabric().set_link(bed.fake_id(0), bed.fake_id(1), {});
    bed.fabric().fail_get(bed.fake_id(1), 0);
    bed.sync(3);
}

TEST(SyncFailureTest, ASilentRankIsNamedAndTheOthersDoNotCommit) {
    BedOptions options;
    options.settings.sync_timeout = std::chrono::milliseconds(700);
    SyncBed bed(options);
    bed.create();
    bed.sync(1);
    const int silent = bed.model().trainers + 1;
    const auto statuses = bed.try_sync(2, {silent});
    for (int rank = 0; rank < silent; ++rank) {
        const Status& status = statuses[static_cast<std::size_t>(rank)];
        EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.message();
        EXPECT_NE(status.message().find("worker 1"), std::string::npos) << "rank " << rank << ": " << status.message();
    }
    EXPECT_EQ(bed.worker(0).worker().version(), 1u);
    // It comes late: the others have given the version up, and so must it.
    bed.rank(silent).prepare(2);
    EXPECT_FALSE(bed.rank(silent).sync(2).ok());
    EXPECT_EQ(bed.worker(1).worker().version(), 1u);
    bed.sync(3);
}

}  // namespace
}  // namespace sluice::test

// Whole syncs of weights that lie on devices, without a GPU: the devices are imitations, so that what the exchange does with them is tested
// wherever it is built.
#include "tests/exchange/sync_bed.h"
#include "tests/support/hang.h"
#include "tests/support/host_device.h"
#include "tests/support/log_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace sluice::test {
namespace {

using PathChoice = RouteOptions::PathChoice;

enum class Where { kBoth, kTrainers, kWorkers };

BedOptions device_options(Where where, PathChoice path) {
    BedOptions options;
    options.trainer = "tp=2";
    options.workers = {"tp=2,ep=on"};
    options.route.path = path;
    options.settings.mapped = false;
    options.open_device = [where, lanes = options.settings.copy_threads](int, bool worker) -> std::unique_ptr<Device> {
        const bool on_device = where == Where::kBoth || (where == Where::kWorkers) == worker;
        return on_device ? std::make_unique<HostDevice>(lanes) : nullptr;
    };
    return options;
}

HostDevice& device_of(BedRank& rank) { return static_cast<HostDevice&>(*rank.device()); }

void three_versions(SyncBed& bed) {
    bed.fabric().allow_device_memory();
    bed.create();
    for (std::uint64_t version = 1; version <= 3 && !testing::Test::HasFailure(); ++version) {
        bed.sync(version);
    }
}

class DeviceSyncTest : public testing::TestWithParam<std::tuple<SourceKind, PathChoice, bool>> {};

TEST_P(DeviceSyncTest, ThreeVersionsAreExact) {
    const auto [source, path, hashes] = GetParam();
    BedOptions options = device_options(Where::kBoth, path);
    options.source = source;
    options.hashes = hashes;
    options.settings.mapped = path == PathChoice::kAuto;
    SyncBed bed(options);
    three_versions(bed);
    for (int worker = 0; worker < bed.model().workers; ++worker) {
        EXPECT_EQ(bed.worker(worker).session().plan().staged, false);
        for (const Chunk& chunk : bed.worker(worker).session().plan().route.chunks) {
            // Nothing of this model converts.
            EXPECT_TRUE(path != PathChoice::kAuto || chunk.path == Path::kMapped);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ways, DeviceSyncTest,
                         testing::Combine(testing::Values(SourceKind::kResident, SourceKind::kGathered),
                                          testing::Values(PathChoice::kDirect, PathChoice::kPacked, PathChoice::kAuto),
                                          testing::Bool()));

class StagedSyncTest : public testing::TestWithParam<std::tuple<Where, SourceKind>> {};

// Weights on devices of one side only, or where no link reaches them: through host memory, packed.
TEST_P(StagedSyncTest, ThreeVersionsAreExact) {
    const auto [where, source] = GetParam();
    BedOptions options = device_options(where, PathChoice::kAuto);
    options.source = source;
    options.settings.staged = where == Where::kBoth;
    options.settings.mapped = true;
    SyncBed bed(options);
    three_versions(bed);
    for (int worker = 0; worker < bed.model().workers; ++worker) {
        EXPECT_TRUE(bed.worker(worker).session().plan().staged);
        for (const Chunk& chunk : bed.worker(worker).session().plan().route.chunks) {
            EXPECT_EQ(chunk.path, Path::kPacked);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Sides, StagedSyncTest,
                         testing::Combine(testing::Values(Where::kBoth, Where::kTrainers, Where::kWorkers),
                                          testing::Values(SourceKind::kResident, SourceKind::kGathered)));

TEST(DeviceSync, ConversionsHappenOnTheDevice) {
    BedOptions options = device_options(Where::kBoth, PathChoice::kAuto);
    options.model = "DeepSeek-V3";  // has islands of f32 on the workers
    options.fields = {{"num_hidden_layers", "2"},   {"first_k_dense_replace", "1"},  {"hidden_size", "64"},
                      {"intermediate_size", "64"},  {"moe_intermediate_size", "32"}, {"n_routed_experts", "8"},
                      {"num_attention_heads", "4"}, {"num_key_value_heads", "4"},    {"q_lora_rank", "32"},
                      {"kv_lora_rank", "32"},       {"vocab_size", "128"},           {"n_group", "2"},
                      {"topk_group", "1"},          {"num_experts_per_tok", "2"},    {"num_nextn_predict_layers", "0"}};
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    SyncBed bed(options);
    three_versions(bed);
}

TEST(DeviceSync, ADeviceThatFailsFailsTheVersionAndTheNextOneIsRight) {
    for (const bool trainer : {true, false}) {
        SyncBed bed(device_options(Where::kBoth, PathChoice::kPacked));
        bed.fabric().allow_device_memory();
        bed.create();
        bed.sync(1);
        BedRank& rank = trainer ? bed.trainer(1) : bed.worker(1);
        std::atomic<int> runs{0};
        device_of(rank).before_run = [&runs] {
            return ++runs == 5 ? internal_error("the device has a fault") : ok_status();
        };
        const std::vector<Status> statuses = bed.try_sync(2);
        for (const Status& status : statuses) {
            EXPECT_THAT(status.message(), testing::HasSubstr("the device has a fault"));
        }
        EXPECT_EQ(bed.worker(0).worker().version(), 1u);
        bed.sync(3);
    }
}

// A trainer that has served all its groups learns in its last wait, for the peers that read its shards, that the version has failed. It still hashes
// shards for one of them then.
TEST(DeviceSync, NothingOfAFailedVersionRunsWhenItsSyncHasReturned) {
    BedOptions options = device_options(Where::kBoth, PathChoice::kDirect);
    options.source = SourceKind::kGathered;
    options.workers = {"tp=1"};
    options.settings.sync_timeout = std::chrono::seconds(2);
    SyncBed bed(options);
    bed.fabric().allow_device_memory();
    bed.create();
    bed.sync(1);
    std::atomic<int> runs{0};
    std::atomic<bool> ended{false};
    std::binary_semaphore go_on{0};
    // The first of a version are the hashes of the first shards that its peer reads.
    device_of(bed.trainer(0)).before_run = [&] {
        if (++runs == 1) {
            go_on.acquire();
            ended = true;
        }
        return ok_status();
    };
    std::jthread later([&] {
        std::this_thread::sleep_for(std::chrono::seconds(4));
        go_on.release();
    });
    const std::vector<Status> statuses = bed.try_sync(2);
    EXPECT_TRUE(ended);
    for (const Status& status : statuses) {
        EXPECT_FALSE(status.ok());
    }
    bed.sync(3);
}

// The last chunk lands while the worker gives the version up for being late, and all agree on it all the same: then its hooks have run too.
TEST(DeviceSync, AVersionThatLandsAtItsDeadlineIsWholeOrFails) {
    BedOptions options = device_options(Where::kBoth, PathChoice::kDirect);
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    options.settings.sync_timeout = std::chrono::seconds(2);
    SyncBed bed(options);
    std::atomic<int> hooked{0};
    BedRank& worker = bed.worker(0);
    worker.hooks.on_group = [&hooked](std::uint64_t, GroupId) {
        ++hooked;
        return ok_status();
    };
    bed.fabric().allow_device_memory();
    bed.create();
    std::atomic<int> runs{0};
    device_of(worker).before_run = [&runs] {
        ++runs;
        return ok_status();
    };
    bed.sync(1);
    const int runs_of_a_version = runs;
    const int groups = hooked;
    runs = hooked = 0;
    const auto begin = std::chrono::steady_clock::now();
    Hang hang;
    device_of(worker).before_run = [&] {
        if (++runs == runs_of_a_version) {
            worker.session().loop().post(hang);
            hang.hangs.acquire();
        }
        return ok_status();
    };
    std::jthread later([&] {
        std::this_thread::sleep_until(begin + std::chrono::milliseconds(2150));
        hang.go_on.release();
    });
    bool committed = false;
    bed.each_rank([&](BedRank& rank) {
        if (rank.is_trainer()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(500));  // its deadline is later
        }
        rank.prepare(2);
        const bool ok = rank.sync(2).ok();
        if (!rank.is_trainer()) {
            committed = ok;
        }
    });
    EXPECT_TRUE(!committed || hooked == groups) << hooked << " of " << groups;
    EXPECT_EQ(worker.worker().version(), committed ? 2u : 1u);
}

// A consumer that shares the GPU is told of what is packed for it, however much is being packed for another one.
TEST(DeviceSync, AConsumerIsNotHeldBackByThePackingForAnother) {
    BedOptions options = device_options(Where::kBoth, PathChoice::kPacked);
    options.trainer = "tp=1";
    options.workers = {"tp=2"};
    options.settings.slots = 6;
    options.settings.copy_threads = 4;
    options.open_device = [lanes = options.settings.copy_threads](int rank, bool) {
        auto device = std::make_unique<HostDevice>(lanes);
        device->uuid_value = rank == 1 ? "worker 0 has its own" : "shared";
        return device;
    };
    SyncBed bed(options);
    bed.fabric().allow_device_memory();
    bed.create();
    bed.sync(1);
    std::atomic<int> packs{0};
    std::atomic<bool> went_on{true};
    std::counting_semaphore<> other_reads{0};
    // The first three are packed for worker 0, which begins alone and has as many slots.
    device_of(bed.trainer(0)).before_run = [&] {
        if (++packs <= 3 && !other_reads.try_acquire_for(std::chrono::seconds(5))) {
            went_on = false;
        }
        return ok_status();
    };
    std::once_flag once;
    device_of(bed.worker(1)).before_run = [&] {
        std::call_once(once, [&] { other_reads.release(3); });
        return ok_status();
    };
    bed.each_rank([&](BedRank& rank) {
        if (!rank.is_trainer() && rank.own_rank() == 1) {
            while (packs < 3) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        }
        rank.prepare(2);
        EXPECT_TRUE(rank.sync(2).ok());
    });
    EXPECT_TRUE(went_on);
    bed.expect_right(2);
}

TEST(DeviceSync, SlotsAreUsedAgainOnlyWhenTheyWereRead) {
    for (const int slots : {1, 2, 3}) {
        BedOptions options = device_options(Where::kBoth, PathChoice::kPacked);
        options.settings.slots = slots;
        SyncBed bed(options);
        bed.worker(0).worker_options.delay_per_chunk = std::chrono::milliseconds(1);
        bed.fabric().allow_device_memory();
        bed.create();
        for (std::uint64_t version = 1; version <= 5 && !testing::Test::HasFailure(); ++version) {
            bed.sync(version);
        }
    }
}

// How often a version goes over from reading to packing, with eight slots and a worker that takes its time for each chunk.
struct Turns {
    std::size_t chunks = 0;
    std::size_t changes = 0;
};
Turns turns_of_a_version(bool one_gpu) {
    BedOptions options = device_options(Where::kBoth, PathChoice::kPacked);
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    options.settings.slots = 8;
    options.settings.copy_threads = 2;
    options.open_device = [one_gpu, lanes = options.settings.copy_threads](int rank, bool) {
        auto device = std::make_unique<HostDevice>(lanes);
        device->uuid_value = one_gpu ? "the only one" : std::to_string(rank);
        return device;
    };
    SyncBed bed(options);
    bed.worker(0).worker_options.delay_per_chunk = std::chrono::milliseconds(4);
    bed.fabric().allow_device_memory();
    bed.create();
    bed.sync(1);
    std::mutex mutex;
    std::string order;  // p: a chunk is packed, r: one was read and is hashed
    const auto note = [&](char what) {
        return [&mutex, &order, what] {
            const std::lock_guard lock(mutex);
            order += what;
            return ok_status();
        };
    };
    device_of(bed.trainer(0)).before_run = note('p');
    device_of(bed.worker(0)).before_run = note('r');
    bed.sync(2);
    Turns turns;
    turns.chunks = bed.worker(0).session().plan().route.chunks.size();
    for (std::size_t at = order.find("rp"); at != std::string::npos; at = order.find("rp", at + 1)) {
        ++turns.changes;
    }
    return turns;
}

TEST(DeviceSync, AGpuThatTwoProcessesSharePacksAndReadsInTurns) {
    const Turns shared = turns_of_a_version(true);
    ASSERT_GE(shared.chunks, 40u);
    // Seven chunks a turn, and some that are still being read when the next one starts.
    EXPECT_LE(shared.changes, shared.chunks / 7 * 2);
    // With one GPU each, every slot is packed anew as soon as it was read.
    const Turns own = turns_of_a_version(false);
    EXPECT_GT(own.changes, own.chunks / 7 * 2);
}

// Waits for a device are of chunks, not of the slices in them.
TEST(DeviceSync, WaitsDoNotGrowWithTheNumberOfSlices) {
    std::vector<std::int64_t> waits;
    std::vector<std::size_t> pieces;
    for (const char* experts : {"4", "32"}) {
        BedOptions options = device_options(Where::kBoth, PathChoice::kPacked);
        options.trainer = "tp=1";
        options.workers = {"tp=1"};
        options.hashes = false;
        options.fields = {{"num_hidden_layers", "1"},   {"hidden_size", "64"},
                          {"num_attention_heads", "4"}, {"num_key_value_heads", "2"},
                          {"head_dim", "16"},           {"vocab_size", "128"},
                          {"num_experts", experts},     {"moe_intermediate_size", "32"},
                          {"intermediate_size", "64"},  {"num_experts_per_tok", "2"}};
        options.route.chunk_bytes = 1 << 20;
        options.settings.chunk_bytes = 1 << 20;
        options.settings.staging_bytes = 4 << 20;
        options.settings.inflight_bytes = 4 << 20;
        SyncBed bed(options);
        bed.fabric().allow_device_memory();
        bed.create();
        bed.sync(1);
        const std::int64_t before = device_of(bed.trainer(0)).waits() + device_of(bed.worker(0)).waits();
        bed.sync(2);
        waits.push_back(device_of(bed.trainer(0)).waits() + device_of(bed.worker(0)).waits() - before);
        std::size_t count = 0;
        for (const Chunk& chunk : bed.worker(0).session().plan().route.chunks) {
            count += chunk.pieces.size();
        }
        pieces.push_back(count);
    }
    EXPECT_GT(pieces[1], 3 * pieces[0]);
    EXPECT_EQ(waits[0], waits[1]);
}

TEST(DeviceSync, TheTrainerWaitsForTheEventThatItIsGiven) {
    BedOptions options = device_options(Where::kBoth, PathChoice::kPacked);
    SyncBed bed(options);
    bed.fabric().allow_device_memory();
    bed.create();
    int event = 0;
    bed.each_rank([&](BedRank& rank) {
        rank.prepare(1);
        const Status status = rank.sync(1, rank.is_trainer() ? &event : nullptr);
        EXPECT_TRUE(status.ok()) << status.message();
    });
    bed.expect_right(1);
    EXPECT_EQ(device_of(bed.trainer(0)).events(), std::vector<void*>{&event});
}

TEST(DeviceSync, AnEventThatIsNeverReachedFailsTheVersionOnly) {
    BedOptions options = device_options(Where::kBoth, PathChoice::kPacked);
    options.settings.sync_timeout = std::chrono::seconds(2);
    SyncBed bed(options);
    bed.fabric().allow_device_memory();
    bed.create();
    int event = 0;
    device_of(bed.trainer(0)).events_reached = false;
    bed.each_rank([&](BedRank& rank) {
        if (rank.world_rank() != 0) {
            std::this_thread::sleep_for(std::chrono::milliseconds(500));  // their deadlines are later
        }
        const Status status = rank.sync(1, rank.world_rank() == 0 ? &event : nullptr);
        EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
        EXPECT_THAT(status.message(), testing::HasSubstr("the CUDA event that was given to sync was not reached"));
    });
    device_of(bed.trainer(0)).events_reached = true;
    bed.sync(2);
}

TEST(DeviceSync, WhoWaitsForAnEventLearnsThatTheVersionHasFailed) {
    SyncBed bed(device_options(Where::kBoth, PathChoice::kPacked));
    bed.fabric().allow_device_memory();
    bed.create();
    int event = 0;
    device_of(bed.trainer(0)).events_reached = false;
    device_of(bed.trainer(1)).before_run = [] { return internal_error("the device has a fault"); };
    const auto begin = std::chrono::steady_clock::now();
    bed.each_rank([&](BedRank& rank) {
        const Status status = rank.sync(1, rank.world_rank() == 0 ? &event : nullptr);
        EXPECT_THAT(status.message(), testing::HasSubstr("the device has a fault"));
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

class NoExportTest : public testing::TestWithParam<SourceKind> {};

TEST_P(NoExportTest, MemoryThatCannotBeExportedGoesThroughHostMemoryAndSaysSo) {
    const ExpectedLog warning("weights go through host memory");
    BedOptions options = device_options(Where::kBoth, PathChoice::kAuto);
    options.source = GetParam();
    options.settings.mapped = true;
    options.open_device = [lanes = options.settings.copy_threads](int, bool) {
        auto device = std::make_unique<HostDevice>(lanes);
        device->shareable = false;
        return device;
    };
    SyncBed bed(options);
    three_versions(bed);
    EXPECT_TRUE(bed.worker(0).session().plan().staged);
}

INSTANTIATE_TEST_SUITE_P(Sources, NoExportTest, testing::Values(SourceKind::kResident, SourceKind::kGathered));

TEST(DeviceSync, AnEmulatedLinkIsRefusedWithItsCure) {
    SyncBed bed(device_options(Where::kBoth, PathChoice::kDirect), Network::kFakeEmulated);
    bed.fabric().allow_device_memory();
    const std::vector<Status> statuses = bed.try_create();
    for (const Status& status : statuses) {
        EXPECT_EQ(status.code(), StatusCode::kUnsupported);
        EXPECT_THAT(status.message(), testing::HasSubstr("UCX_CUDA_IPC_ENABLE_GET_ZCOPY"));
    }
}

TEST(DeviceSync, ALinkThatWasTriedOutWithHostMemoryCarriesNoDeviceMemory) {
    for (const PathChoice path : {PathChoice::kDirect, PathChoice::kPacked}) {
        SyncBed bed(device_options(Where::kBoth, path));
        bed.fabric().allow_device_memory(MemoryKind::kHost);
        for (const Status& status : bed.try_create()) {
            EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
            EXPECT_THAT(status.message(), testing::HasSubstr("UcxOptions::probe_memory"));
        }
    }
    BedOptions staged = device_options(Where::kBoth, PathChoice::kAuto);
    staged.settings.staged = true;
    BedOptions mapped = device_options(Where::kBoth, PathChoice::kMapped);
    mapped.settings.mapped = true;
    for (const BedOptions& options : {staged, mapped}) {
        SyncBed bed(options);
        bed.fabric().allow_device_memory(MemoryKind::kHost);
        bed.create();
        bed.sync(1);
    }
}

// What fails once all have shown their memory, and before there are links.
TEST(DeviceSync, ARankThatCannotMakeItsPartTellsTheOthersWhy) {
    enum class Step { kCompile, kMap };
    for (const auto& [failing, step] : std::vector<std::pair<int, Step>>{
             {0, Step::kCompile}, {1, Step::kCompile}, {3, Step::kCompile}, {2, Step::kMap}}) {
        SCOPED_TRACE(failing);
        BedOptions options =
            device_options(Where::kBoth, step == Step::kMap ? PathChoice::kMapped : PathChoice::kPacked);
        options.settings.mapped = step == Step::kMap;
        options.open_device = [failing = failing, step = step, lanes = options.settings.copy_threads](int rank, bool) {
            auto device = std::make_unique<HostDevice>(lanes);
            if (rank == failing) {
                (step == Step::kMap ? device->before_map : device->before_compile) = [] {
                    return internal_error("the device is out of order");
                };
            }
            return device;
        };
        SyncBed bed(options);
        bed.fabric().allow_device_memory();
        const std::vector<Status> statuses = bed.try_create();
        for (int rank = 0; rank < bed.size(); ++rank) {
            const Status& status = statuses[static_cast<std::size_t>(rank)];
            EXPECT_EQ(status.code(), StatusCode::kInternal);
            EXPECT_THAT(status.message(), testing::HasSubstr("the device is out of order"));
            EXPECT_LT(bed.create_took(rank).count(), 5) << "rank " << rank << " has waited for a link";
        }
        bed.each_rank([&](BedRank& rank) {
            EXPECT_TRUE(bed.bootstrap(rank.world_rank()).barrier(Deadline::after(kPatience)).ok()) << "all are there";
        });
    }
}

TEST(DeviceSync, MemoryThatCannotBeMappedIsNamedWithTheCure) {
    BedOptions options = device_options(Where::kBoth, PathChoice::kAuto);
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    options.settings.mapped = true;
    options.open_device = [lanes = options.settings.copy_threads](int, bool) {
        auto device = std::make_unique<HostDevice>(lanes);
        device->before_map = [] { return internal_error("peer access is not supported"); };
        return device;
    };
    SyncBed bed(options);
    bed.fabric().allow_device_memory();
    for (const Status& status : bed.try_create()) {
        EXPECT_THAT(status.message(), testing::HasSubstr("trainer 0: cannot map "));
        EXPECT_THAT(status.message(), testing::HasSubstr(" of its GPU memory: peer access is not supported; set "
                                                         "SLUICE_MAPPED=off to read it by transport, or use --staged"));
    }
}

// A rank dies before it has said hello, while another has not come as far as that either.
TEST(DeviceSync, ARankThatDiesBeforeItsLinksAreOpenIsNamedAtOnce) {
    constexpr int kDead = 2;
    for (const int late : {0, 3}) {
        SCOPED_TRACE(late);
        const ExpectedLog lost("is lost");
        BedOptions options = device_options(Where::kBoth, PathChoice::kPacked);
        options.settings.connect_timeout = std::chrono::seconds(4);  // the dead rank itself waits for so long
        SyncBed* dying = nullptr;
        options.open_device = [late, &dying, lanes = options.settings.copy_threads](int rank, bool) {
            auto device = std::make_unique<HostDevice>(lanes);
            device->before_compile = [rank, late, &dying, once = false]() mutable {
                if (rank == kDead) {
                    dying->fabric().kill(dying->fake_id(rank));
                } else if (rank == late && !std::exchange(once, true)) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(500));
                }
                return ok_status();
            };
            return device;
        };
        SyncBed bed(options);
        dying = &bed;
        bed.fabric().allow_device_memory();
        const std::vector<Status> statuses = bed.try_create();
        for (const int rank : {0, 1, 3}) {
            const Status& status = statuses[static_cast<std::size_t>(rank)];
            EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
            EXPECT_EQ(status.peer(), kDead) << status.message();
            EXPECT_THAT(status.message(), testing::HasSubstr("worker 0 is lost"));
            EXPECT_LT(bed.create_took(rank).count(), 3) << "rank " << rank << " has waited for a link";
            EXPECT_EQ(bed.bootstrap(rank).barrier(Deadline::after(std::chrono::milliseconds(100))).code(),
                      StatusCode::kInternal)
                << "rank " << rank << " waits for one that is dead";
        }
    }
}

TEST(DeviceSync, ADeviceWithFewerLanesThanCopyThreadsIsRefused) {
    BedOptions options = device_options(Where::kBoth, PathChoice::kPacked);
    options.settings.copy_threads = 3;
    options.open_device = [](int, bool) { return std::make_unique<HostDevice>(2); };
    SyncBed bed(options);
    for (const Status& status : bed.try_create()) {
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(status.message(), testing::HasSubstr("3 copy threads, but the device was opened with 2 lanes"));
        EXPECT_THAT(status.message(), testing::HasSubstr("SLUICE_COPY_THREADS=2"));
    }
}

TEST(DeviceSync, GpuMemoryWithoutADeviceIsRefused) {
    BedOptions options;
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    SyncBed bed(options);
    bed.create();
    int nothing = 0;
    const Status status = bed.trainer(0).trainer().sync(1, &nothing);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr("no device"));
}

}  // namespace
}  // namespace sluice::test

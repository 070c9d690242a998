// Whole syncs between processes that share one GPU: over cuda_ipc and CUDA IPC, with memory and streams as embedding programs have them.
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/device_memory.h"
#include "runtime/cuda/stream.h"
#include "tests/cuda/gpu_fixtures.h"
#include "tests/cuda/gpu_ranks.h"
#include "tests/exchange/socket_bootstrap.h"
#include "tests/support/log_guard.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <set>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using PathChoice = RouteOptions::PathChoice;

class GpuSyncTest : public testing::TestWithParam<PathChoice> {};

TEST_P(GpuSyncTest, ThreeVersionsAreExact) {
    run_ranks(gpu_options(GetParam()), [](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
        ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
        for (std::uint64_t version = 1; version <= 3; ++version) {
            ASSERT_NO_FATAL_FAILURE(sync(rank, version));
        }
        if (!rank.is_trainer()) {
            for (const auto& [trainer, link] : rank.worker().links()) {
                EXPECT_EQ(link.link_class, transport::LinkClass::kOneSided) << link.transport;
                EXPECT_TRUE(link.transport.starts_with("cuda_ipc")) << link.transport;
            }
        }
        rank.close();
    });
}

INSTANTIATE_TEST_SUITE_P(Paths, GpuSyncTest,
                         testing::Values(PathChoice::kDirect, PathChoice::kPacked, PathChoice::kMapped));

// A scatter that takes its time must not see the next chunk in its slot or staging.
TEST(GpuSync, SlotsAreUsedAgainOnlyWhenTheyWereRead) {
    for (const int slots : {1, 2, 3}) {
        BedOptions options = gpu_options(PathChoice::kPacked);
        options.settings.slots = slots;
        run_ranks(options, [](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
            rank.worker_options.delay_per_chunk = 1ms;
            ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
            for (std::uint64_t version = 1; version <= 17; ++version) {
                ASSERT_NO_FATAL_FAILURE(sync(rank, version));
            }
            rank.close();
        });
    }
}

// Memory that is freed and comes back at the same address belongs to another registration.
TEST_P(GpuSyncTest, MemoryAtTheSameAddressIsRegisteredAnew) {
    const BedOptions options = gpu_options(GetParam());
    if (const std::string& why = why_no_gpu(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    const BedModel model(options);
    const SocketMesh meshes[] = {SocketMesh(2), SocketMesh(2), SocketMesh(2)};
    ForkedPeers peers(
        2,
        [&](PeerChannel& channel) {
            GpuNetwork network;
            std::set<std::byte*> addresses;
            for (std::uint64_t round = 0; round < 3 && !testing::Test::HasFailure(); ++round) {
                const auto bootstrap = meshes[round].bootstrap(channel.rank());
                BedRank rank(options, model, channel.rank());
                create(rank, *bootstrap, network);
                addresses.insert(rank.device_memory().data());
                sync(rank, 10 * round + 1);
                rank.close();
            }
            EXPECT_LT(addresses.size(), 3u) << "the allocator gave other addresses: nothing was tried";
            return testing::Test::HasFailure() ? ForkedPeers::kFailedExpectations : 0;
        },
        60s);
    EXPECT_TRUE(peers.wait_all_ok());
}

// Memory that CUDA IPC cannot export goes through host memory, with a warning that says so.
class GpuMemoryTest : public testing::TestWithParam<int> {};

TEST_P(GpuMemoryTest, OfEveryKindHasTheRightBytes) {
    const int pieces = GetParam();
    run_ranks(gpu_options(PathChoice::kAuto),
              [pieces](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
                  rank.allocate_on_device = [pieces](Device& device, std::int64_t size) -> Result<Buffer> {
                      SLUICE_RETURN_IF_ERROR(device.use_on_this_thread());
                      return pieces == 0 ? allocate_from_pool(size) : allocate_virtual(size, pieces);
                  };
                  const ExpectedLog warning("weights go through host memory");
                  ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
                  EXPECT_TRUE(rank.session().plan().staged);
                  for (std::uint64_t version = 1; version <= 2; ++version) {
                      ASSERT_NO_FATAL_FAILURE(sync(rank, version));
                  }
                  rank.close();
              });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuMemoryTest, testing::Values(0, 1, 2), [](const auto& instance) {
    return instance.param == 0 ? std::string("Pool") : "VirtualOf" + std::to_string(instance.param);
});

// The optimiser's kernels are still to run when the version is published: it becomes valid with the event.
TEST_P(GpuSyncTest, AVersionIsPublishedWithTheEventThatItIsReadyAfter) {
    run_ranks(gpu_options(GetParam()), [](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
        ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
        ASSERT_NO_FATAL_FAILURE(sync(rank, 1));
        if (!rank.is_trainer()) {
            ASSERT_NO_FATAL_FAILURE(sync(rank, 2));
            rank.close();
            return;
        }
        // prepare() writes the weights at once; here they come from a copy that is behind a second of other work.
        const auto size = rank.device_memory().size();
        auto next = network.device().allocate(static_cast<std::int64_t>(size));
        ASSERT_TRUE(next.ok());
        std::vector<std::byte> old(size);
        ASSERT_TRUE(network.device().copy(old.data(), rank.device_memory().data(), size, 0).ok());
        rank.prepare(2);
        ASSERT_TRUE(network.device().copy(next->data(), rank.device_memory().data(), size, 0).ok());
        ASSERT_TRUE(network.device().copy(rank.device_memory().data(), old.data(), size, 0).ok());
        auto stream = CudaStream::create();
        auto event = CudaEvent::create();
        ASSERT_TRUE(stream.ok() && event.ok());
        ASSERT_TRUE(launch_busy(1.0, stream->handle()).ok());
        ASSERT_TRUE(copy_async(rank.device_memory().data(), next->data(), size, *stream).ok());
        ASSERT_TRUE(event->record(*stream).ok());
        const Status status = rank.sync(2, event->handle());
        EXPECT_TRUE(status.ok()) << status.message();
        rank.close();
    });
}

// A kernel that runs for ten seconds on a stream of the trainer's own, during set-up, syncs and tear-down, stops nothing for good.
TEST_P(GpuSyncTest, ALongKernelOnTheTrainersStreamCausesNoDeadlock) {
    run_ranks(gpu_options(GetParam()), [](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
        auto stream = CudaStream::create();
        ASSERT_TRUE(stream.ok());
        const Clock::time_point begin = Clock::now();
        const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
        if (rank.is_trainer()) {
            ASSERT_TRUE(launch_busy(10.0, stream->handle()).ok());
        }
        ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
        const double created = seconds();
        // Set-up allocates, and may wait for a kernel; a sync must not.
        ASSERT_NO_FATAL_FAILURE(sync(rank, 1));
        if (rank.is_trainer()) {
            ASSERT_TRUE(launch_busy(5.0, stream->handle()).ok());
        }
        const double again = seconds();
        ASSERT_NO_FATAL_FAILURE(sync(rank, 2));
        ASSERT_NO_FATAL_FAILURE(sync(rank, 3));
        const double synced = seconds();
        EXPECT_LT(synced - again, 4.5) << "syncs waited for a kernel of the embedding program";
        rank.close();
        std::fprintf(stderr, "%s: set-up ended after %.1f s, syncs after %.1f s, close after %.1f s\n",
                     rank.is_trainer() ? "trainer" : "worker", created, synced, seconds());
        ASSERT_TRUE(stream->wait().ok());
    });
}

}  // namespace
}  // namespace sluice::test

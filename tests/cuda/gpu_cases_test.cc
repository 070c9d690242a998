// What was reported of other systems about GPU memory, tried here.
#include "runtime/cuda/device_memory.h"
#include "runtime/cuda/stream.h"
#include "tests/cuda/gpu_fixtures.h"
#include "tests/cuda/gpu_ranks.h"
#include "tests/exchange/socket_bootstrap.h"
#include "tests/support/log_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace sluice::test {
namespace {

using PathChoice = RouteOptions::PathChoice;
using Allocate = std::function<Result<Buffer>(Device& device, std::int64_t size)>;

constexpr PathChoice kPaths[] = {PathChoice::kDirect, PathChoice::kPacked, PathChoice::kMapped};

// Three sessions, each with memory allocated anew, mostly at the address of the last: it belongs to another registration.
void expect_registered_anew(PathChoice path, const Allocate& allocate) {
    const BedOptions options = gpu_options(path);
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
                rank.allocate_on_device = allocate;
                create(rank, *bootstrap, network);
                addresses.insert(rank.device_memory().data());
                sync(rank, 10 * round + 1);
                rank.close();
            }
            EXPECT_LT(addresses.size(), 3u) << "the allocator gave other addresses: nothing was tried";
            return testing::Test::HasFailure() ? ForkedPeers::kFailedExpectations : 0;
        },
        std::chrono::seconds(60));
    EXPECT_TRUE(peers.wait_all_ok());
}

TEST(Cases, C09_MemoryAtTheSameAddress) {
    if (const std::string& why = why_no_gpu(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    for (const PathChoice path : kPaths) {
        expect_registered_anew(path, [](Device& device, std::int64_t size) { return device.allocate(size); });
    }
}

// The embedding program has a CUDA runtime of its own, as a shared library: what it frees goes through other code than what we link.
TEST(Cases, C09_MemoryOfASharedCudaRuntime) {
    if (const std::string& why = why_no_gpu(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    if (const std::string why = why_no_shared_runtime(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    for (const PathChoice path : kPaths) {
        expect_registered_anew(path, [](Device& device, std::int64_t size) -> Result<Buffer> {
            SLUICE_RETURN_IF_ERROR(device.use_on_this_thread());
            return allocate_with_shared_runtime(size);
        });
    }
}

// Memory that CUDA IPC cannot export goes through host memory, with a warning that says so: from a stream-ordered pool, and virtual memory
// in one and in two pieces.
TEST(Cases, P01_MemoryOutOfReachOfOtherProcesses) {
    for (const int pieces : {0, 1, 2}) {
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
}

// The optimiser's kernels are still to run when the version is published: it becomes valid with the event. What the worker launches after
// its sync, on a stream of its own, sees the new version.
TEST(Cases, V03_PublishedWithAnEvent) {
    for (const PathChoice path : kPaths) {
        run_ranks(gpu_options(path), [](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
            ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
            ASSERT_NO_FATAL_FAILURE(sync(rank, 1));
            const auto size = rank.device_memory().size();
            auto stream = CudaStream::create();
            auto event = CudaEvent::create();
            auto copy = network.device().allocate(static_cast<std::int64_t>(size));
            ASSERT_TRUE(stream.ok() && event.ok() && copy.ok());
            if (!rank.is_trainer()) {
                rank.prepare(2);
                const Status status = rank.sync(2);
                ASSERT_TRUE(status.ok()) << status.message();
                ASSERT_TRUE(copy_async(copy->data(), rank.device_memory().data(), size, *stream).ok());
                ASSERT_TRUE(stream->wait().ok());
                EXPECT_EQ(rank.wrong_parameters(2), std::vector<std::string>{});
                std::vector<std::byte> seen(size);
                ASSERT_TRUE(network.device().copy(seen.data(), copy->data(), size, 0).ok());
                EXPECT_TRUE(std::equal(seen.begin(), seen.end(), rank.memory().begin()));
                rank.close();
                return;
            }
            // prepare() writes the weights at once; here they come from a copy that is behind a second of other work.
            std::vector<std::byte> old(size);
            ASSERT_TRUE(network.device().copy(old.data(), rank.device_memory().data(), size, 0).ok());
            rank.prepare(2);
            ASSERT_TRUE(network.device().copy(copy->data(), rank.device_memory().data(), size, 0).ok());
            ASSERT_TRUE(network.device().copy(rank.device_memory().data(), old.data(), size, 0).ok());
            ASSERT_TRUE(launch_busy(1.0, stream->handle()).ok());
            ASSERT_TRUE(copy_async(rank.device_memory().data(), copy->data(), size, *stream).ok());
            ASSERT_TRUE(event->record(*stream).ok());
            const Status status = rank.sync(2, event->handle());
            EXPECT_TRUE(status.ok()) << status.message();
            rank.close();
        });
    }
}

// A UCX that has no transport for GPU memory (none in UCX_TLS; without its CUDA modules it is the same): refused when it is opened, not found out
// by a host's copy of a device's pointer.
TEST(Cases, B03_UcxWithoutCudaTransports) {
    run_ranks(gpu_options(PathChoice::kPacked),
              [](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
                  const Status created = rank.create(bootstrap, network.factory("tcp,cma,self"));
                  ASSERT_FALSE(created.ok());
                  EXPECT_THAT(created.message(), testing::HasSubstr("UCX"));
                  EXPECT_EQ(created.message().find('\n'), std::string::npos);
                  std::fprintf(stderr, "refused: %s\n", created.message().c_str());
              });
}

}  // namespace
}  // namespace sluice::test

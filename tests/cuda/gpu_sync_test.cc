// Whole syncs between processes that share one GPU, over cuda_ipc and CUDA IPC.
#include "runtime/cuda/stream.h"
#include "tests/cuda/gpu_fixtures.h"
#include "tests/cuda/gpu_ranks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

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
        options.fields = {{"num_hidden_layers", "1"},   {"hidden_size", "64"},
                          {"num_attention_heads", "4"}, {"num_key_value_heads", "2"},
                          {"head_dim", "16"},           {"vocab_size", "64"},
                          {"num_experts", "4"},         {"moe_intermediate_size", "32"},
                          {"intermediate_size", "64"},  {"num_experts_per_tok", "2"}};
        options.settings.slots = slots;
        run_ranks(options, [slots](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
            rank.worker_options.delay_per_chunk = 1ms;
            ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
            if (!rank.is_trainer()) {
                ASSERT_GT(rank.session().plan().route.chunks.size(), static_cast<std::size_t>(4 * slots));
            }
            for (std::uint64_t version = 1; version <= 50; ++version) {
                ASSERT_NO_FATAL_FAILURE(sync(rank, version));
            }
            rank.close();
        });
    }
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

// How often the driver is made to wait or to allocate in a sync, counted by a preloaded library.
#include "tests/cuda/call_counter.h"
#include "tests/cuda/gpu_ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <dlfcn.h>
#include <numeric>

namespace sluice::test {
namespace {

using PathChoice = RouteOptions::PathChoice;

CudaCalls* counted_calls() {
    auto* function = reinterpret_cast<CudaCallsFunction*>(::dlsym(RTLD_DEFAULT, kCudaCallsSymbol));
    return function != nullptr ? function() : nullptr;
}

/// Of one rank in one sync.
struct Counts {
    std::int64_t waits = 0, device_waits = 0, allocations = 0, slices = 0;
};

/// Trainer and worker in the third sync of a session, with so many experts: their number is that of slices, not that of chunks.
std::array<Counts, 2> counts_of_a_sync(PathChoice path, const char* experts) {
    BedOptions options = gpu_options(path);
    options.hashes = false;
    options.fields = {{"num_hidden_layers", "1"},   {"hidden_size", "64"},
                      {"num_attention_heads", "4"}, {"num_key_value_heads", "2"},
                      {"head_dim", "16"},           {"vocab_size", "128"},
                      {"num_experts", experts},     {"moe_intermediate_size", "32"},
                      {"intermediate_size", "64"},  {"num_experts_per_tok", "2"}};
    options.route.chunk_bytes = options.settings.chunk_bytes = 1 << 20;
    options.settings.staging_bytes = options.settings.inflight_bytes = 4 << 20;
    std::array<Counts, 2> out;
    run_ranks(
        options,
        [](PeerChannel& channel, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
            ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
            ASSERT_NO_FATAL_FAILURE(sync(rank, 1));
            ASSERT_NO_FATAL_FAILURE(sync(rank, 2));
            rank.prepare(3);
            channel.barrier();
            const CudaCalls& calls = *counted_calls();
            // Set-up and two syncs have waited and allocated; or nothing is counted.
            ASSERT_GT(calls.waits, 0);
            ASSERT_GT(calls.allocations, 0);
            Counts counts{-calls.waits, -calls.device_waits, -calls.allocations, 0};
            const Status status = rank.sync(3);
            counts.waits += calls.waits;
            counts.device_waits += calls.device_waits;
            counts.allocations += calls.allocations;
            ASSERT_TRUE(status.ok()) << status.message();
            for (const Chunk& chunk : rank.session().plan().route.chunks) {
                counts.slices += static_cast<std::int64_t>(chunk.pieces.size());
            }
            Blob blob(sizeof counts);
            std::memcpy(blob.data(), &counts, sizeof counts);
            channel.send_to_test(blob);
            rank.close();
        },
        std::chrono::seconds(60),
        [&](ForkedPeers& peers) {
            for (int rank = 0; rank < 2; ++rank) {
                const auto blob = peers.receive(rank);
                ASSERT_TRUE(blob && blob->size() == sizeof(Counts));
                std::memcpy(&out[static_cast<std::size_t>(rank)], blob->data(), sizeof(Counts));
            }
        });
    return out;
}

class CallCountTest : public testing::TestWithParam<PathChoice> {};

TEST_P(CallCountTest, WaitsDoNotGrowWithSlicesAndNothingIsAllocated) {
    ASSERT_NE(counted_calls(), nullptr) << "cuda_call_counter is not preloaded: run this by ctest, or set LD_PRELOAD";
    if (const std::string& why = why_no_gpu(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    const auto few = counts_of_a_sync(GetParam(), "4");
    const auto many = counts_of_a_sync(GetParam(), "32");
    ASSERT_FALSE(HasFailure());
    EXPECT_GT(many[1].slices, 3 * few[1].slices);
    for (const auto& counts : {few, many}) {
        for (const Counts& rank : counts) {
            EXPECT_EQ(rank.allocations, 0);
            EXPECT_EQ(rank.device_waits, 0);
        }
    }
    EXPECT_EQ(few[0].waits, many[0].waits) << "of the trainer";
    EXPECT_EQ(few[1].waits, many[1].waits) << "of the worker";
    std::fprintf(stderr, "waits of trainer and worker: %ld and %ld with %ld slices, %ld and %ld with %ld\n",
                 few[0].waits, few[1].waits, few[1].slices, many[0].waits, many[1].waits, many[1].slices);
}

INSTANTIATE_TEST_SUITE_P(Paths, CallCountTest,
                         testing::Values(PathChoice::kDirect, PathChoice::kPacked, PathChoice::kMapped));

}  // namespace
}  // namespace sluice::test

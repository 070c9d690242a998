// Layer buffers and hooks between a trainer and a worker that share a GPU, with an engine's graphs and streams.
#include "runtime/cuda/device_memory.h"
#include "runtime/cuda/stream.h"
#include "tests/cuda/gpu_fixtures.h"
#include "tests/cuda/gpu_ranks.h"
#include "tests/cuda/gpu_rows.h"
#include "tests/worker/kernel_worker.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using PathChoice = RouteOptions::PathChoice;

// Whole blocks of 128 x 128, and parts of some.
BedOptions qwen_options(PathChoice path) {
    BedOptions options = gpu_options(path);
    options.fields = {{"num_hidden_layers", "6"},   {"hidden_size", "256"},
                      {"num_attention_heads", "8"}, {"num_key_value_heads", "2"},
                      {"head_dim", "40"},           {"vocab_size", "128"},
                      {"num_experts", "4"},         {"moe_intermediate_size", "160"},
                      {"intermediate_size", "64"}};
    options.route.chunk_bytes = options.settings.chunk_bytes = 64 << 10;
    return options;
}

BedOptions deepseek_options(PathChoice path) {
    BedOptions options = gpu_options(path);
    options.model = "DeepSeek-V3";
    options.fields = {{"num_hidden_layers", "3"},   {"first_k_dense_replace", "1"},  {"hidden_size", "128"},
                      {"intermediate_size", "192"}, {"moe_intermediate_size", "64"}, {"n_routed_experts", "4"},
                      {"num_attention_heads", "4"}, {"num_key_value_heads", "4"},    {"q_lora_rank", "64"},
                      {"kv_lora_rank", "64"},       {"vocab_size", "128"},           {"n_group", "2"},
                      {"topk_group", "1"},          {"num_experts_per_tok", "2"},    {"num_nextn_predict_layers", "0"}};
    return options;
}

/// A rank whose worker keeps kernel format.
std::unique_ptr<KernelWorker> kernel_of(BedRank& rank, int layers_in_flight = 2) {
    rank.worker_options.layers_in_flight = layers_in_flight;
    return rank.is_trainer() ? nullptr : std::make_unique<KernelWorker>(rank);
}

void sync_kernel(BedRank& rank, KernelWorker* kernel, std::uint64_t version) {
    if (kernel != nullptr) {
        kernel->poison();
    }
    ASSERT_NO_FATAL_FAILURE(sync(rank, version));
    if (kernel != nullptr) {
        ASSERT_EQ(kernel->wrong(version), "");
    }
}

void three_versions(const BedOptions& options) {
    run_ranks(options, [](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
        const auto kernel = kernel_of(rank);
        ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
        for (std::uint64_t version = 1; version <= 3; ++version) {
            ASSERT_NO_FATAL_FAILURE(sync_kernel(rank, kernel.get(), version));
        }
        rank.close();
    });
}

class GpuLayerTest : public testing::TestWithParam<PathChoice> {};
INSTANTIATE_TEST_SUITE_P(Paths, GpuLayerTest,
                         testing::Values(PathChoice::kDirect, PathChoice::kPacked, PathChoice::kMapped));

TEST_P(GpuLayerTest, ThreeVersionsAreExactlyWhatTheFormulaGives) { three_versions(deepseek_options(GetParam())); }

TEST(GpuLayer, StagedLayersAreExactToo) {
    BedOptions options = deepseek_options(PathChoice::kAuto);
    options.settings.staged = true;
    three_versions(options);
}

/// A CUDA graph.
class Graph {
public:
    Graph(const CudaStream& stream, const std::function<Status()>& launches) {
        cudaGraph_t graph = nullptr;
        EXPECT_EQ(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
        EXPECT_TRUE(launches().ok());
        EXPECT_EQ(cudaStreamEndCapture(stream.handle(), &graph), cudaSuccess);
        EXPECT_EQ(cudaGraphInstantiate(&executable_, graph, 0), cudaSuccess);
        cudaGraphDestroy(graph);
    }
    ~Graph() { cudaGraphExecDestroy(executable_); }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    void replay(const CudaStream& stream) const {
        EXPECT_EQ(cudaGraphLaunch(executable_, stream.handle()), cudaSuccess);
    }

private:
    cudaGraphExec_t executable_ = nullptr;
};

/// An engine that computes with every quantised weight, by a graph that it captures once.
class Engine {
public:
    Engine(KernelWorker& kernel, Device& device) : kernel_(kernel), stream_(*CudaStream::create()) {
        std::int64_t rows = 0;
        for (std::size_t i = 0; i < kernel.storage().format().quantised.size(); ++i) {
            weights_.push_back(weight(i, kernel.storage().memory().data()));
            rows += weights_.back().matrices * weights_.back().rows;
        }
        sums_.emplace(std::move(*device.allocate(rows * static_cast<std::int64_t>(sizeof(float)))));
        graph_ = std::make_unique<Graph>(stream_, [&]() -> Status {
            auto* at = reinterpret_cast<float*>(sums_->data());
            for (const BlockQuantisation& weight : weights_) {
                SLUICE_RETURN_IF_ERROR(launch_row_sums(weight, at, stream_.handle()));
                at += weight.matrices * weight.rows;
            }
            return ok_status();
        });
    }

    /// What the graph computes now.
    std::vector<float> replay() {
        std::vector<float> sums(sums_->size() / sizeof(float));
        graph_->replay(stream_);
        EXPECT_TRUE(copy_async(reinterpret_cast<std::byte*>(sums.data()), sums_->data(), sums_->size(), stream_).ok());
        EXPECT_TRUE(stream_.wait().ok());
        return sums;
    }
    /// What it should compute: of what the loader would have written in that version.
    [[nodiscard]] std::vector<float> expected(std::uint64_t version) const {
        const auto loaded = kernel_.rank().model().parameters(kernel_.rank().demand(), version);
        std::vector<float> sums;
        for (std::size_t i = 0; i < weights_.size(); ++i) {
            BlockQuantisation weight = weights_[i];
            std::vector<std::byte> values(static_cast<std::size_t>(weight.matrices * weight.rows * weight.columns));
            std::vector<float> scales(
                static_cast<std::size_t>(weight.matrices * weight.block_rows() * weight.block_columns()));
            weight.source = loaded[static_cast<std::size_t>(kernel_.storage().format().quantised[i])].data();
            weight.values = values.data();
            weight.scales = scales.data();
            quantise_blocks(weight);
            const std::vector<float> rows = row_sums(weight);
            sums.insert(sums.end(), rows.begin(), rows.end());
        }
        return sums;
    }
    [[nodiscard]] const CudaStream& stream() const { return stream_; }

private:
    [[nodiscard]] BlockQuantisation weight(std::size_t number, std::byte* memory) const {
        const ParameterId id = kernel_.storage().format().quantised[number];
        BlockQuantisation weight = *quantisation_of(kernel_.rank().demand().parameters[static_cast<std::size_t>(id)]);
        weight.values = memory + kernel_.storage().values_of(number).offset;
        weight.scales = reinterpret_cast<float*>(memory + kernel_.storage().scales_of(number).offset);
        return weight;
    }

    KernelWorker& kernel_;
    CudaStream stream_;
    std::vector<BlockQuantisation> weights_;
    std::optional<Buffer> sums_;
    std::unique_ptr<Graph> graph_;
};

TEST_P(GpuLayerTest, AGraphCapturedBeforeTheFirstSyncComputesWithEachVersion) {
    constexpr int kInFlight = 2;
    run_ranks(qwen_options(GetParam()), [](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
        const auto kernel = kernel_of(rank, kInFlight);
        ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
        std::optional<Engine> engine;
        if (kernel) {
            engine.emplace(*kernel, network.device());
            constexpr std::int64_t kRounding = 16 * 256;
            EXPECT_EQ(rank.worker().layer_buffers(), static_cast<std::size_t>(kInFlight));
            EXPECT_LE(rank.worker().layer_buffer_bytes(), kInFlight * (kernel->largest_layer() + kRounding));
        }
        for (std::uint64_t version = 1; version <= 3; ++version) {
            ASSERT_NO_FATAL_FAILURE(sync_kernel(rank, kernel.get(), version));
            if (kernel) {
                EXPECT_EQ(engine->replay(), engine->expected(version)) << "version " << version;
            }
        }
        rank.close();
    });
}

// An engine may go on computing while the trainer's weights are on their way: the version takes its place in the order of the engine's stream.
TEST_P(GpuLayerTest, AVersionTakesItsPlaceInTheOrderOfTheEnginesStream) {
    run_ranks(qwen_options(GetParam()), [](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
        const auto kernel = kernel_of(rank);
        ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
        ASSERT_NO_FATAL_FAILURE(sync_kernel(rank, kernel.get(), 1));
        if (rank.is_trainer()) {
            ASSERT_NO_FATAL_FAILURE(sync(rank, 2));
            rank.close();
            return;
        }
        const std::span<std::byte> storage = kernel->storage().memory();
        const std::span<std::byte> parameters = rank.device_memory();
        const auto size = static_cast<std::int64_t>(storage.size() + parameters.size());
        auto snapshot = network.device().allocate(size);
        auto stream = CudaStream::create();
        ASSERT_TRUE(snapshot.ok() && stream.ok());
        std::vector<std::byte> old(static_cast<std::size_t>(size));
        std::vector<std::byte> seen(old.size());
        const auto take = [&] {
            return copy_async(snapshot->data(), storage.data(), storage.size(), *stream).ok() &&
                   copy_async(snapshot->data() + storage.size(), parameters.data(), parameters.size(), *stream).ok();
        };
        ASSERT_TRUE(take() && stream->wait().ok());
        ASSERT_TRUE(network.device().copy(old.data(), snapshot->data(), old.size(), 0).ok());

        // A second of work, then a look at all weights: launched before the sync, over when its first byte is written.
        ASSERT_TRUE(launch_busy(1.0, stream->handle()).ok());
        ASSERT_TRUE(take());
        const Status status = rank.worker().sync(2, stream->handle());
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_TRUE(network.device().copy(seen.data(), snapshot->data(), seen.size(), 0).ok());
        EXPECT_EQ(seen, old) << "the engine has seen parts of the next version";

        // And what is launched on it now sees all of the new one.
        ASSERT_TRUE(take() && stream->wait().ok());
        ASSERT_TRUE(network.device().copy(seen.data(), snapshot->data(), seen.size(), 0).ok());
        EXPECT_NE(seen, old);
        EXPECT_EQ(kernel->wrong(2), "");
        EXPECT_EQ(rank.wrong_parameters(2), std::vector<std::string>{});
        rank.close();
    });
}

// Kernels of the embedding programs run for long during set-up, syncs and tear-down; hooks have a stream of their own, and wait for none of them.
TEST_P(GpuLayerTest, LongKernelsOfTrainerAndEngineCauseNoDeadlock) {
    run_ranks(qwen_options(GetParam()), [](PeerChannel&, BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
        const auto kernel = kernel_of(rank);
        auto stream = CudaStream::create();
        ASSERT_TRUE(stream.ok());
        const Clock::time_point begin = Clock::now();
        const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
        if (rank.is_trainer()) {
            ASSERT_TRUE(launch_busy(10.0, stream->handle()).ok());
        }
        ASSERT_NO_FATAL_FAILURE(create(rank, bootstrap, network));
        const double created = seconds();
        ASSERT_NO_FATAL_FAILURE(sync_kernel(rank, kernel.get(), 1));
        ASSERT_TRUE(launch_busy(5.0, stream->handle()).ok());
        const double again = seconds();
        ASSERT_NO_FATAL_FAILURE(sync_kernel(rank, kernel.get(), 2));
        ASSERT_NO_FATAL_FAILURE(sync_kernel(rank, kernel.get(), 3));
        const double synced = seconds();
        EXPECT_LT(synced - again, 4.5) << "syncs waited for a kernel of an embedding program";
        rank.close();
        std::fprintf(stderr, "%s: set-up ended after %.1f s, syncs after %.1f s, close after %.1f s\n",
                     rank.is_trainer() ? "trainer" : "worker", created, synced, seconds());
        ASSERT_TRUE(stream->wait().ok());
    });
}

}  // namespace
}  // namespace sluice::test

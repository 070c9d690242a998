// Layers that land in buffers and are written to kernel-format storage by hooks: in host memory, and on imitated devices.
#include "runtime/services/trace.h"
#include "tests/exchange/sync_bed.h"
#include "tests/support/host_device.h"
#include "tests/support/log_guard.h"
#include "tests/worker/kernel_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <tuple>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using PathChoice = RouteOptions::PathChoice;

enum class Memory { kHost, kDevice };
void PrintTo(Memory memory, std::ostream* out) { *out << (memory == Memory::kHost ? "host" : "device"); }

std::vector<std::pair<std::string, std::string>> small_deepseek() {
    return {{"num_hidden_layers", "3"},   {"first_k_dense_replace", "1"},  {"hidden_size", "64"},
            {"intermediate_size", "64"},  {"moe_intermediate_size", "32"}, {"n_routed_experts", "8"},
            {"num_attention_heads", "4"}, {"num_key_value_heads", "4"},    {"q_lora_rank", "32"},
            {"kv_lora_rank", "32"},       {"vocab_size", "128"},           {"n_group", "2"},
            {"topk_group", "1"},          {"num_experts_per_tok", "2"},    {"num_nextn_predict_layers", "0"}};
}

std::vector<std::pair<std::string, std::string>> many_layers() {
    return {{"num_hidden_layers", "8"},
            {"hidden_size", "64"},
            {"num_attention_heads", "8"},
            {"num_key_value_heads", "2"},
            {"head_dim", "8"},
            {"vocab_size", "128"},
            {"num_experts", "4"},
            {"moe_intermediate_size", "32"},
            {"intermediate_size", "64"}};
}

BedOptions layer_options(Memory memory, PathChoice path = PathChoice::kAuto) {
    BedOptions options;
    options.fields = many_layers();
    options.trainer = "tp=2,pp=2";
    options.workers = {"tp=2"};
    options.route.path = path;
    options.settings.mapped = false;
    if (memory == Memory::kDevice) {
        options.open_device = [lanes = options.settings.copy_threads](int, bool) {
            return std::make_unique<HostDevice>(lanes);
        };
    }
    return options;
}

HostDevice& device_of(BedRank& rank) { return static_cast<HostDevice&>(*rank.device()); }

/// A bed all of whose workers keep kernel format.
class LayerBed {
public:
    explicit LayerBed(const BedOptions& options, int layers_in_flight = 2) : bed(options) {
        bed.fabric().allow_device_memory();
        for (int w = 0; w < bed.model().workers; ++w) {
            workers.push_back(std::make_unique<KernelWorker>(bed.worker(w)));
            bed.worker(w).worker_options.layers_in_flight = layers_in_flight;
        }
    }

    void sync(std::uint64_t version) {
        for (auto& worker : workers) {
            worker->poison();
        }
        bed.sync(version);
        expect_right(version);
    }
    void expect_right(std::uint64_t version) {
        for (std::size_t w = 0; w < workers.size(); ++w) {
            EXPECT_EQ(workers[w]->wrong(version), "") << "worker " << w;
        }
    }

    SyncBed bed;
    std::vector<std::unique_ptr<KernelWorker>> workers;
};

class LayerSyncTest : public testing::TestWithParam<std::tuple<Memory, SourceKind, PathChoice>> {};

TEST_P(LayerSyncTest, ThreeVersionsAreExactlyWhatTheFormulaGives) {
    const auto [memory, source, path] = GetParam();
    BedOptions options = layer_options(memory, path);
    options.model = "DeepSeek-V3";
    options.fields = small_deepseek();
    options.source = source;
    options.settings.mapped = path == PathChoice::kMapped;
    LayerBed layers(options);
    layers.bed.create();
    EXPECT_EQ(layers.workers[0]->storage().format().splits.size(), 3U);
    for (std::uint64_t version = 1; version <= 3 && !HasFailure(); ++version) {
        layers.sync(version);
    }
}

INSTANTIATE_TEST_SUITE_P(Ways, LayerSyncTest,
                         testing::Combine(testing::Values(Memory::kHost, Memory::kDevice),
                                          testing::Values(SourceKind::kResident, SourceKind::kGathered),
                                          testing::Values(PathChoice::kDirect, PathChoice::kPacked,
                                                          PathChoice::kAuto)));

class LayerTest : public testing::TestWithParam<Memory> {};
INSTANTIATE_TEST_SUITE_P(Memories, LayerTest, testing::Values(Memory::kHost, Memory::kDevice));

TEST_P(LayerTest, OnOneHostLayersAreCopiedFromMappedMemory) {
    BedOptions options = layer_options(GetParam());
    options.settings.mapped = true;
    options.source = SourceKind::kGathered;
    LayerBed layers(options);
    layers.bed.create();
    layers.sync(1);
    layers.sync(2);
}

TEST_P(LayerTest, StagedLayersAreScatteredIntoTheirBuffers) {
    BedOptions options = layer_options(GetParam());
    options.settings.staged = true;
    LayerBed layers(options);
    layers.bed.create();
    layers.sync(1);
    layers.sync(2);
}

// Two owners hold parts of each layer, and each layer's hooks run once, when all of it is there.
TEST_P(LayerTest, HooksRunOncePerLayerAfterItsLastSlice) {
    LayerBed layers(layer_options(GetParam()));
    for (auto& worker : layers.workers) {
        KernelWorker& kernel = *worker;
        kernel.watching.on_run = [&kernel](const LandedLayer& layer) {
            EXPECT_TRUE(kernel.right_in_buffer(layer)) << "group " << layer.group;
            return ok_status();
        };
    }
    layers.bed.create();
    for (std::uint64_t version = 1; version <= 3; ++version) {
        layers.sync(version);
        for (auto& worker : layers.workers) {
            std::vector<GroupId> calls = worker->watching.calls(version);
            std::sort(calls.begin(), calls.end());
            EXPECT_EQ(calls, worker->layers());
        }
    }
}

// Extra memory is that of the layers in flight, however many layers there are.
TEST_P(LayerTest, MemoryIsThatOfTheLayersInFlight) {
    constexpr std::int64_t kRounding = 16 * 256;
    for (const int in_flight : {1, 2, 3, 100}) {
        BedOptions options = layer_options(GetParam());
        LayerBed layers(options, in_flight);
        layers.bed.create();
        layers.sync(1);
        KernelWorker& kernel = *layers.workers[0];
        Worker& worker = kernel.rank().worker();
        const auto held = std::min<std::int64_t>(in_flight, 8);
        EXPECT_EQ(static_cast<std::int64_t>(worker.layer_buffers()), held);
        EXPECT_LE(worker.layer_buffer_bytes(), held * (kernel.largest_layer() + kRounding));
        EXPECT_GE(worker.layer_buffer_bytes(), held * kernel.largest_layer());
        if (GetParam() == Memory::kDevice) {
            // All that this rank has taken from its device, in set-up and sync.
            const auto parameters = static_cast<std::int64_t>(kernel.rank().device_memory().size());
            const auto storage = static_cast<std::int64_t>(kernel.storage().memory().size());
            EXPECT_EQ(device_of(kernel.rank()).allocated(),
                      parameters + storage + options.settings.staging_bytes + worker.layer_buffer_bytes());
        }
    }
}

// A buffer is its layer's until the hooks have ended, on the device too; and pulls of other layers go on meanwhile.
TEST_P(LayerTest, ABufferIsUsedAgainWhenItsHooksHaveEnded) {
    constexpr std::size_t kInFlight = 2;
    BedOptions options = layer_options(GetParam());
    options.trainer = "tp=2";
    options.workers = {"tp=1"};
    options.trace = true;
    LayerBed layers(options, kInFlight);
    KernelWorker& kernel = *layers.workers[0];
    kernel.watching.on_run = [&](const LandedLayer& layer) {
        std::this_thread::sleep_for(10ms);
        EXPECT_TRUE(kernel.right_in_buffer(layer)) << "group " << layer.group << " after a while in its hook";
        return ok_status();
    };
    layers.bed.create();
    if (GetParam() == Memory::kDevice) {
        device_of(kernel.rank()).before_stream_work = [] {
            std::this_thread::sleep_for(2ms);
            return ok_status();
        };
    }
    layers.sync(1);
    const std::vector<GroupId> order = kernel.watching.calls(1);
    std::map<GroupId, TraceEvent> hooks, landed;
    for (const TraceEvent& event : kernel.rank().session().trace()->log().events) {
        if (event.name == TraceName::kHook) {
            hooks[event.group] = event;
        } else if (event.name == TraceName::kLanded) {
            landed[event.group] = event;
        }
    }
    bool meanwhile = false;
    for (std::size_t i = 0; i < order.size(); ++i) {
        for (std::size_t j = 0; j < order.size(); ++j) {
            meanwhile = meanwhile || (landed[order[j]].begin > hooks[order[i]].begin &&
                                      landed[order[j]].begin < hooks[order[i]].end);
        }
        if (i + kInFlight < order.size()) {
            EXPECT_GT(landed[order[i + kInFlight]].begin, hooks[order[i]].end) << "layer " << i + kInFlight;
        }
    }
    EXPECT_TRUE(meanwhile) << "no layer landed during another one's hooks";
}

TEST_P(LayerTest, AHookThatFailsFailsTheVersionAndTheNextOneIsRight) {
    for (const std::size_t nth : {0U, 3U, 7U}) {
        LayerBed layers(layer_options(GetParam()));
        KernelWorker& kernel = *layers.workers[1];
        kernel.watching.on_run = [&](const LandedLayer& layer) {
            return layer.version == 2 && kernel.watching.calls(2).size() == nth + 1
                       ? internal_error("no such kernel format")
                       : ok_status();
        };
        layers.bed.create();
        layers.sync(1);
        for (const Status& status : layers.bed.try_sync(2)) {
            EXPECT_THAT(status.message(), testing::HasSubstr("no such kernel format"));
            EXPECT_THAT(status.message(), testing::HasSubstr("hook of group"));
        }
        EXPECT_EQ(kernel.watching.calls(2).size(), nth + 1) << "a hook ran after the one that failed";
        for (auto& worker : layers.workers) {
            EXPECT_EQ(worker->rank().worker().version(), 1U);
            EXPECT_TRUE(worker->rank().worker().dirty());
        }
        layers.sync(3);
    }
}

// An error of what a hook has launched shows when the stream is waited for.
TEST(LayerDeviceTest, WorkThatFailsOnTheStreamFailsTheVersion) {
    LayerBed layers(layer_options(Memory::kDevice));
    layers.bed.create();
    layers.sync(1);
    std::atomic<int> work{0};
    device_of(layers.bed.worker(0)).before_stream_work = [&work] {
        return ++work == 5 ? internal_error("an illegal address") : ok_status();
    };
    for (const Status& status : layers.bed.try_sync(2)) {
        EXPECT_THAT(status.message(), testing::HasSubstr("an illegal address"));
    }
    EXPECT_EQ(layers.bed.worker(0).worker().version(), 1U);
    layers.sync(3);
}

// The next version waits for what a deadline has left running: the buffers are its.
TEST(LayerDeviceTest, HooksThatOutlastTheDeadlineFailTheVersionOnly) {
    BedOptions options = layer_options(Memory::kDevice);
    options.settings.sync_timeout = 1500ms;
    LayerBed layers(options);
    layers.bed.create();
    layers.sync(1);
    std::atomic<int> work{0};
    device_of(layers.bed.worker(0)).before_stream_work = [&work] {
        if (++work == 3) {
            std::this_thread::sleep_for(2200ms);
        }
        return ok_status();
    };
    for (const Status& status : layers.bed.try_sync(2)) {
        EXPECT_FALSE(status.ok());
    }
    // The engine's storage is the hooks' until their work has ended, late or not: the test must not write it before.
    for (int worker = 0; worker < layers.bed.model().workers; ++worker) {
        device_of(layers.bed.worker(worker)).stream_log().wait_until_idle();
    }
    layers.sync(3);
}

// For as long as a sync may take; a stream that never ends must not keep the program from doing something about it.
TEST(LayerDeviceTest, CloseWaitsForHooksThatOutlastedTheDeadlineWithinLimits) {
    for (const std::chrono::milliseconds runs : {2200ms, 4500ms}) {
        BedOptions options = layer_options(Memory::kDevice);
        options.settings.sync_timeout = 1500ms;
        std::atomic<int> work{0};
        std::atomic<bool> running{false};
        const bool too_long = runs > 2 * options.settings.sync_timeout;
        const test::ExpectedLog late("hooks may still run", too_long ? test::ExpectedLog::Presence::kRequired
                                                                     : test::ExpectedLog::Presence::kAllowed);
        LayerBed layers(options);
        layers.bed.create();
        device_of(layers.bed.worker(0)).before_stream_work = [&] {
            if (++work == 3) {
                running = true;
                std::this_thread::sleep_for(runs);
                running = false;
            }
            return ok_status();
        };
        for (const Status& status : layers.bed.try_sync(1)) {
            EXPECT_FALSE(status.ok());
        }
        EXPECT_TRUE(running);
        layers.bed.close();  // and ends the worker, whose destructor waits without a limit
        EXPECT_FALSE(running);
    }
}

TEST(LayerDeviceTest, TheVersionTakesItsPlaceInTheOrderOfANamedStream) {
    BedOptions options = layer_options(Memory::kDevice);
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    LayerBed layers(options);
    layers.bed.create();
    int stream = 0;
    layers.bed.each_rank([&](BedRank& rank) {
        rank.prepare(1);
        const Status status = rank.sync(1, rank.is_trainer() ? nullptr : &stream);
        EXPECT_TRUE(status.ok()) << status.message();
    });
    layers.expect_right(1);
    const std::vector<std::string> log = device_of(layers.bed.worker(0)).stream_log().all();
    ASSERT_GE(log.size(), 4U);
    EXPECT_EQ(log[0], "follow");
    EXPECT_EQ(log[1], "waited") << "before the first byte is written";
    EXPECT_EQ(log[log.size() - 2], "waited");
    EXPECT_EQ(log.back(), "precede") << "after the last hook";
}

TEST(LayerDeviceTest, AStreamNeedsADevice) {
    LayerBed layers(layer_options(Memory::kHost));
    layers.bed.create();
    int stream = 0;
    const Status status = layers.bed.worker(0).worker().sync(1, &stream);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr("not in GPU memory"));
}

// Fewer slots than consumers, one buffer, and hooks that take their time in turns: every owner would fill its slot for the worker that waits for the other owner.
TEST_P(LayerTest, TheSmallestLimitsDoNotDeadlock) {
    for (const SourceKind source : {SourceKind::kResident, SourceKind::kGathered}) {
        BedOptions options = layer_options(GetParam(), PathChoice::kPacked);
        options.source = source;
        options.workers = {"tp=2", "tp=1,replicas=2"};
        options.settings.slots = 1;
        options.settings.credit = 1;
        options.settings.staging_bytes = 4096;
        options.settings.inflight_bytes = 4096;
        LayerBed layers(options, 1);
        for (std::size_t w = 0; w < layers.workers.size(); ++w) {
            layers.workers[w]->watching.on_run = [w](const LandedLayer& layer) {
                std::this_thread::sleep_for((static_cast<std::size_t>(layer.group) + w) % 3 * 2ms);
                return ok_status();
            };
        }
        layers.bed.create();
        for (std::uint64_t version = 1; version <= 3 && !HasFailure(); ++version) {
            layers.sync(version);
        }
    }
}

// A device's worker may buffer everything that it has.
TEST_P(LayerTest, EverythingMayLandInBuffers) {
    BedOptions options = layer_options(GetParam());
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    SyncBed bed(options);
    bed.fabric().allow_device_memory();
    BedRank& rank = bed.worker(0);
    WatchingHook hook;
    std::atomic<int> right{0};
    rank.buffered = [&](BedRank& r) {
        r.hooks.layers = {&hook};
        std::vector<ParameterId> all(r.demand().parameters.size());
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i] = static_cast<ParameterId>(i);
        }
        return all;
    };
    hook.on_run = [&](const LandedLayer& layer) {
        const auto expected = bed.model().parameters(rank.demand(), layer.version);
        for (const ParameterId id : layer.parameters) {
            const auto& want = expected[static_cast<std::size_t>(id)];
            right += std::equal(want.begin(), want.end(), hook.address(id)) ? 1 : 0;
        }
        return ok_status();
    };
    bed.create();
    bed.sync(1);
    EXPECT_EQ(right, static_cast<int>(rank.demand().parameters.size()));
    EXPECT_EQ(hook.calls(1).size(), static_cast<std::size_t>(bed.model().catalogue.groups()));
}

TEST(LayerSetupTest, ABufferedParameterNeedsAHook) {
    SyncBed bed(layer_options(Memory::kHost));
    bed.worker(1).buffered = [](BedRank&) { return std::vector<ParameterId>{2}; };
    for (const Status& status : bed.try_create()) {
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(status.message(), testing::HasSubstr("there is no layer hook"));
    }
}

TEST(LayerSetupTest, AHookThatCannotPrepareFailsTheSetUpOfAll) {
    LayerBed layers(layer_options(Memory::kHost));
    layers.workers[0]->watching.on_prepare = internal_error("no room for kernel format");
    for (const Status& status : layers.bed.try_create()) {
        EXPECT_THAT(status.message(), testing::HasSubstr("layer hook: no room for kernel format"));
    }
}

// --verify full is no rubber stamp.
TEST(LayerVerificationTest, ADamagedElementIsFoundAndNamed) {
    BedOptions options = layer_options(Memory::kHost);
    options.model = "DeepSeek-V3";
    options.fields = small_deepseek();
    LayerBed layers(options);
    layers.bed.create();
    layers.sync(1);
    KernelWorker& kernel = *layers.workers[0];
    for (const auto& tensor : {kernel.storage().values_of(1), kernel.storage().scales_of(2),
                               kernel.storage().keys_of(0), kernel.storage().values_of_split(2)}) {
        std::byte& damaged = kernel.storage().memory()[static_cast<std::size_t>(tensor.offset + tensor.bytes() - 1)];
        damaged ^= std::byte{1};
        EXPECT_THAT(kernel.wrong(1), testing::HasSubstr(" of " + tensor.name + " "));
        damaged ^= std::byte{1};
    }
    EXPECT_EQ(kernel.wrong(1), "");
    EXPECT_NE(kernel.wrong(2), "");
}

}  // namespace
}  // namespace sluice::test

// What bench_gpu broadcast does on many GPUs, by threads with imitations of devices and of NCCL.
#include "bench/broadcast_rank.h"

#include "runtime/services/tensor_values.h"
#include "tests/support/host_device.h"
#include "tests/support/thread_collective.h"

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace sluice::bench {
namespace {

using namespace std::chrono_literals;

/// Carries out at once what is launched.
class ImmediateStream final : public DeviceStream {
public:
    explicit ImmediateStream(Device& device) : device_(device) {}

    [[nodiscard]] void* handle() const override { return nullptr; }
    Status run(const DeviceProgram& program, const Device::Bases& bases) override {
        return device_.run(program, bases, 0, nullptr);
    }
    Status quantise(const BlockQuantisation& /*job*/) override {
        return {StatusCode::kUnsupported, "nothing is quantised here"};
    }
    Status follow(void* /*other*/) override { return ok_status(); }
    Status precede(void* /*other*/) override { return ok_status(); }
    Status wait(Deadline /*deadline*/) override { return ok_status(); }

private:
    Device& device_;
};

/// An imitated device that makes values, too.
class ValueDevice final : public Device {
public:
    [[nodiscard]] const std::string& name() const override { return host_.name(); }
    [[nodiscard]] const std::string& uuid() const override { return host_.uuid(); }
    Status use_on_this_thread() override { return ok_status(); }
    Result<Buffer> allocate(std::int64_t size) override { return host_.allocate(size); }
    Result<Buffer> allocate_pinned(std::int64_t size) override { return host_.allocate_pinned(size); }
    Status check_address(const std::byte* data) override { return host_.check_address(data); }
    Result<std::unique_ptr<DeviceProgram>> compile(std::span<const DeviceCopy> copies) override {
        return host_.compile(copies);
    }
    [[nodiscard]] int lanes() const override { return host_.lanes(); }
    Status run(const DeviceProgram& program, const Bases& bases, int lane, std::uint64_t* digest) override {
        return host_.run(program, bases, lane, digest);
    }
    Result<std::uint64_t> hash(const DeviceProgram& program, const Bases& bases, Side side, int lane) override {
        return host_.hash(program, bases, side, lane);
    }
    Status hash_all(std::span<const DeviceProgram* const> programs, const Bases& bases, Side side, int lane,
                    std::span<std::uint64_t> digests) override {
        return host_.hash_all(programs, bases, side, lane, digests);
    }
    Status copy(std::byte* to, const std::byte* from, std::size_t size, int lane) override {
        return host_.copy(to, from, size, lane);
    }
    Status fill(std::byte* to, std::byte value, std::size_t size, int lane) override {
        return host_.fill(to, value, size, lane);
    }
    Result<bool> event_reached(void* event) override { return host_.event_reached(event); }
    Result<std::unique_ptr<DeviceStream>> make_stream() override {
        return std::unique_ptr<DeviceStream>(std::make_unique<ImmediateStream>(host_));
    }
    Result<std::vector<std::byte>> share(const std::byte* data) override { return host_.share(data); }
    Result<Buffer> map(std::span<const std::byte> handle, std::int64_t size) override {
        return host_.map(handle, size);
    }

    Result<std::unique_ptr<DeviceProgram>> compile_values(std::span<const DeviceValues> values) override {
        auto program = std::make_unique<Values>();
        program->values.assign(values.begin(), values.end());
        return std::unique_ptr<DeviceProgram>(std::move(program));
    }
    Status fill_values(const DeviceProgram& program, std::int64_t version, int /*lane*/) override {
        each_item(program, version, [](std::byte* target, const std::vector<std::byte>& right) {
            std::memcpy(target, right.data(), right.size());
        });
        return ok_status();
    }
    Result<std::uint64_t> count_other_values(const DeviceProgram& program, std::int64_t version,
                                             int /*lane*/) override {
        std::uint64_t different = 0;
        each_item(program, version, [&](const std::byte* target, const std::vector<std::byte>& right) {
            different += std::memcmp(target, right.data(), right.size()) == 0 ? 0 : 1;
        });
        return different;
    }

private:
    struct Values final : DeviceProgram {
        std::vector<DeviceValues> values;
        [[nodiscard]] std::int64_t wire_bytes() const override { return 0; }
    };

    template <class Visit>
    static void each_item(const DeviceProgram& program, std::int64_t version, Visit&& visit) {
        for (const DeviceValues& one : static_cast<const Values&>(program).values) {
            const std::int64_t size = size_of(one.dtype);
            std::vector<std::byte> right(static_cast<std::size_t>(one.copy.item));
            for_each_item(one.copy, [&](std::int64_t src, std::int64_t dst) {
                fill_generated(one.name_hash, one.dtype, src / size, one.copy.item / size, version, right.data());
                visit(one.target + dst, right);
            });
        }
    }

    test::HostDevice host_{1};
};

class ThreadNccl final : public NcclGroup {
public:
    explicit ThreadNccl(std::unique_ptr<CollectiveGroup> member) : member_(std::move(member)) {}

    [[nodiscard]] int rank() const override { return member_->rank(); }
    [[nodiscard]] int size() const override { return member_->size(); }
    Status exchange(std::span<const Transfer> sends, std::span<const Transfer> receives, Deadline deadline) override {
        return member_->exchange(sends, receives, deadline);
    }
    void abort() override { member_->abort(); }
    [[nodiscard]] bool failed() const override { return member_->failed(); }
    Status broadcast(std::byte* data, std::int64_t bytes, int root, Deadline deadline) override {
        if (rank() != root) {
            const Transfer receive{root, data, bytes};
            return exchange({}, {&receive, 1}, deadline);
        }
        std::vector<Transfer> sends;
        for (int peer = 0; peer < size(); ++peer) {
            if (peer != root) {
                sends.push_back({peer, data, bytes});
            }
        }
        return exchange(sends, {}, deadline);
    }
    Status all_gather(std::byte* /*data*/, std::int64_t /*bytes*/, Deadline /*deadline*/) override {
        return {StatusCode::kUnsupported, "nobody gathers from all here"};
    }
    [[nodiscard]] void* stream() const override { return nullptr; }
    Status wait(Deadline /*deadline*/) override { return ok_status(); }

private:
    std::unique_ptr<CollectiveGroup> member_;
};

struct Outcome {
    Status status;
    Status before;  // of verify() before anything came
    std::int64_t gathered = 0;
};

Status take_part(BroadcastRank& way, std::barrier<>& together, Outcome& outcome) {
    for (std::uint64_t version = 1; version <= 2; ++version) {
        SLUICE_RETURN_IF_ERROR(way.prepare(version));
        outcome.before = way.verify(version);
        together.arrive_and_wait();
        SLUICE_RETURN_IF_ERROR(way.run(Deadline::after(30s)));
        together.arrive_and_wait();
        SLUICE_RETURN_IF_ERROR(way.verify(version));
    }
    return ok_status();
}

void expect_right_weights(const std::string& trainer, const std::string& worker, bool gathers) {
    SCOPED_TRACE(trainer + " -> " + worker);
    const auto model = cli::open_model(
        {"Qwen3-30B-A3B",
         {"num_hidden_layers=5", "hidden_size=64", "num_attention_heads=4", "num_key_value_heads=2", "head_dim=16",
          "num_experts=8", "num_experts_per_tok=2", "moe_intermediate_size=24", "vocab_size=128"},
         WeightForm::kCheckpoint});
    ASSERT_TRUE(model.ok()) << model.status().message();
    const TrainerLayout trainers = *TrainerLayout::parse(trainer);
    const WorkerLayout workers = *WorkerLayout::parse(worker);
    const int ranks = trainers.world_size() + workers.world_size();
    test::ThreadCollective gather(trainers.world_size());
    test::ThreadCollective broadcast(workers.world_size() + 1);
    std::barrier<> together(ranks);
    std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
            ValueDevice device;
            BroadcastRank way(*model, device, rank);
            outcome.status = way.open(trainers, {workers});
            const auto member = [](test::ThreadCollective& group, std::optional<int> place) {
                return place ? std::make_unique<ThreadNccl>(group.member(*place)) : nullptr;
            };
            if (outcome.status.ok()) {
                way.connect(member(gather, way.place_in_gather()), member(broadcast, way.place_in_broadcast()));
                outcome.status = take_part(way, together, outcome);
                outcome.gathered = way.gathered_bytes();
            }
            if (!outcome.status.ok()) {
                together.arrive_and_drop();  // nobody waits for it
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (int rank = 0; rank < ranks; ++rank) {
        const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
        EXPECT_TRUE(outcome.status.ok()) << "rank " << rank << ": " << outcome.status.message();
        EXPECT_EQ(outcome.before.ok(), rank < trainers.world_size()) << "poison was taken for weights";
        EXPECT_EQ(outcome.gathered > 0, gathers);
    }
}

TEST(BroadcastRank, WorkersGetTheirPartsOfWhatTrainersHoldTogether) {
    expect_right_weights("tp=1", "tp=1", false);
    expect_right_weights("dp=2", "tp=2", false);
    expect_right_weights("tp=2,ep=2", "dp=2,ep=on", true);
    expect_right_weights("tp=2,dp=2,ep=4", "dp=4,ep=on", true);
    expect_right_weights("tp=2,pp=2", "tp=2,replicas=2", true);
    expect_right_weights("fsdp=3", "tp=2,ep=on", true);
}

}  // namespace
}  // namespace sluice::bench

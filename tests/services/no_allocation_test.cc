// What runs for every chunk of a sync takes no heap memory. A program of its own, since counted_new.cc replaces operator new.
#include "runtime/services/buffer.h"
#include "runtime/services/copy_engine.h"
#include "runtime/services/copy_threads.h"
#include "runtime/services/tensor_values.h"
#include "tests/services/counted_new.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <semaphore>
#include <vector>

namespace sluice {
namespace {

TEST(NoAllocationTest, OperatorNewIsCounted) {
    const test::AllocationCount allocations;
    const auto number = std::make_unique<int>(1);
    EXPECT_EQ(allocations.so_far(), *number);
}

TEST(NoAllocationTest, CopiesHashesAndValues) {
    std::vector<std::byte> src(1 << 21);
    std::vector<std::byte> dst(1 << 21);
    const StridedCopy copies[] = {
        {0, 0, 2, Dims{4, 3, 2, 3, 2, 5}, Dims{1000, 300, 100, 30, 14, 2}, Dims{1000, 300, 100, 30, 14, 2}},
        {0, 0, 2, Dims{64, 300}, Dims{2, 128}, Dims{600, 2}},
        {0, 0, 1024, Dims{1024}, Dims{2000}, Dims{1025}},
    };
    const StridedCopy narrowing{0, 0, 4, Dims{10, 10}, Dims{80, 4}, Dims{20, 2}};
    const test::AllocationCount allocations;
    ChunkHash hash;
    for (const StridedCopy& copy : copies) {
        strided_copy(copy, src.data(), dst.data());
        hash.update_source(copy, src.data());
        hash.update_destination(copy, dst.data());
    }
    converting_copy(narrowing, DType::kF32, DType::kBF16, src.data(), dst.data());
    fill_generated(1, DType::kBF16, 0, 100, 2, dst.data());
    EXPECT_NE(hash.digest(), 0u);
    EXPECT_EQ(allocations.so_far(), 0);
}

TEST(NoAllocationTest, StagingReservations) {
    auto arena = StagingArena::create(1 << 20);
    ASSERT_TRUE(arena.ok());
    const test::AllocationCount allocations;
    std::optional<std::int64_t> held[64];
    for (int i = 0; i < 1000; ++i) {
        auto& slot = held[i * 7 % 64];
        if (slot) {
            arena->release(*slot);
        }
        slot = arena->try_reserve(1 + i * 977 % 30'000);
    }
    EXPECT_EQ(allocations.so_far(), 0);
}

class CountingJob final : public CopyJob {
public:
    void run() override {}
    void finished() override { done.release(); }
    std::counting_semaphore<> done{0};
};

TEST(NoAllocationTest, JobsOfTheCopyThreads) {
    EventLoop loop("loop");
    CopyThreads copy_threads(loop, "copy", 1);
    CountingJob jobs[10];
    const auto round = [&] {
        for (CountingJob& job : jobs) {
            copy_threads.enqueue(job);
        }
        for (CountingJob& job : jobs) {
            job.done.acquire();
        }
    };
    round();
    const test::AllocationCount allocations;
    for (int i = 0; i < 20; ++i) {
        round();
    }
    EXPECT_EQ(allocations.so_far(), 0);
}

}  // namespace
}  // namespace sluice

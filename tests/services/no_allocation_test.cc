// What runs for every chunk of a sync takes no heap memory. A program of its own, since it replaces operator new.
#include "runtime/services/buffer.h"
#include "runtime/services/copy_engine.h"
#include "runtime/services/copy_thread.h"
#include "runtime/services/tensor_values.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <semaphore>
#include <vector>

namespace {
std::atomic<long> allocations{0};
}  // namespace

void* operator new(std::size_t size) {
    ++allocations;
    if (void* memory = std::malloc(size == 0 ? 1 : size)) {
        return memory;
    }
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace sluice {
namespace {

TEST(NoAllocationTest, OperatorNewIsCounted) {
    const long before = allocations;
    const auto number = std::make_unique<int>(1);
    EXPECT_EQ(allocations - before, *number);
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
    const long before = allocations;
    ChunkHash hash;
    for (const StridedCopy& copy : copies) {
        strided_copy(copy, src.data(), dst.data());
        hash.update_source(copy, src.data());
        hash.update_destination(copy, dst.data());
    }
    converting_copy(narrowing, DType::kF32, DType::kBF16, src.data(), dst.data());
    fill_generated(1, DType::kBF16, 0, 100, 2, dst.data());
    EXPECT_NE(hash.digest(), 0u);
    EXPECT_EQ(allocations - before, 0);
}

TEST(NoAllocationTest, StagingReservations) {
    auto arena = StagingArena::create(1 << 20);
    ASSERT_TRUE(arena.ok());
    const long before = allocations;
    std::optional<std::int64_t> held[64];
    for (int i = 0; i < 1000; ++i) {
        auto& slot = held[i * 7 % 64];
        if (slot) {
            arena->release(*slot);
        }
        slot = arena->try_reserve(1 + i * 977 % 30'000);
    }
    EXPECT_EQ(allocations - before, 0);
}

class CountingJob final : public CopyJob {
public:
    void run() override {}
    void finished() override { done.release(); }
    std::counting_semaphore<> done{0};
};

TEST(NoAllocationTest, JobsOfTheCopyThread) {
    EventLoop loop("loop");
    CopyThread copy_thread(loop, "copy");
    CountingJob jobs[10];
    const auto round = [&] {
        for (CountingJob& job : jobs) {
            copy_thread.enqueue(job);
        }
        for (CountingJob& job : jobs) {
            job.done.acquire();
        }
    };
    round();
    const long before = allocations;
    for (int i = 0; i < 20; ++i) {
        round();
    }
    EXPECT_EQ(allocations - before, 0);
}

}  // namespace
}  // namespace sluice

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

/// Replaces operator new of a test program by one that counts while it is asked to. Include it in one source of the
/// program only. Memory that C libraries take by malloc is not counted.
namespace sluice::test {

inline std::atomic<bool> counting_allocations{false};
inline std::atomic<int> counted_allocations{0};

/// Counts the allocations of all threads while it lives.
class AllocationCount {
public:
    AllocationCount() {
        counted_allocations = 0;
        counting_allocations = true;
    }
    ~AllocationCount() { counting_allocations = false; }
    AllocationCount(const AllocationCount&) = delete;
    AllocationCount& operator=(const AllocationCount&) = delete;
    [[nodiscard]] int so_far() const { return counted_allocations.load(); }
};

inline void* counted_allocation(std::size_t size) {
    if (counting_allocations.load(std::memory_order_relaxed)) {
        counted_allocations.fetch_add(1, std::memory_order_relaxed);
    }
    void* memory = std::malloc(size == 0 ? 1 : size);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}

}  // namespace sluice::test

void* operator new(std::size_t size) { return sluice::test::counted_allocation(size); }
void* operator new[](std::size_t size) { return sluice::test::counted_allocation(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

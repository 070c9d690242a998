#pragma once

namespace sluice::test {

/// Counts the calls of operator new, of all threads, while it lives. A program that uses it lists counted_new.cc among
/// its sources, which replaces operator new. Memory that C libraries take by malloc is not counted.
class AllocationCount {
public:
    AllocationCount();
    ~AllocationCount();
    AllocationCount(const AllocationCount&) = delete;
    AllocationCount& operator=(const AllocationCount&) = delete;
    [[nodiscard]] int so_far() const;
};

}  // namespace sluice::test

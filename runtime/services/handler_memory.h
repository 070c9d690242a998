#pragma once

#include <cassert>
#include <cstddef>

namespace sluice {

/// Memory for the one Asio operation that is outstanding at a time on a descriptor, so that waiting again and again
/// allocates nothing. It must outlive the operation.
class HandlerMemory {
public:
    HandlerMemory() = default;
    HandlerMemory(const HandlerMemory&) = delete;
    HandlerMemory& operator=(const HandlerMemory&) = delete;

    void* allocate(std::size_t bytes) {
        assert(!used_ && bytes <= sizeof(storage_));
        (void)bytes;
        used_ = true;
        return storage_;
    }
    void deallocate() { used_ = false; }

    /// Largest operation that fits; Asio's wait operations take about half of it.
    static constexpr std::size_t kBytes = 256;

private:
    alignas(std::max_align_t) std::byte storage_[kBytes];
    bool used_ = false;
};

/// The allocator through which Asio takes an operation's memory from a HandlerMemory.
template <class T>
class HandlerAllocator {
public:
    using value_type = T;

    explicit HandlerAllocator(HandlerMemory& memory) : memory_(&memory) {}
    template <class U>
    explicit HandlerAllocator(const HandlerAllocator<U>& other) : memory_(other.memory()) {}

    T* allocate(std::size_t count) {
        static_assert(sizeof(T) <= HandlerMemory::kBytes);
        return static_cast<T*>(memory_->allocate(count * sizeof(T)));
    }
    void deallocate(T*, std::size_t) { memory_->deallocate(); }

    [[nodiscard]] HandlerMemory* memory() const { return memory_; }
    friend bool operator==(const HandlerAllocator& a, const HandlerAllocator& b) { return a.memory_ == b.memory_; }

private:
    HandlerMemory* memory_;
};

}  // namespace sluice

#pragma once

#include <condition_variable>
#include <mutex>

namespace sluice {

/// A count that other threads bring to zero and one thread waits for. May be destroyed as soon as wait() has returned
/// (std::latch may not: its last count_down may still be notifying).
class Latch {
public:
    explicit Latch(int count) : count_(count) {}

    void count_down() {
        const std::lock_guard lock(mutex_);
        if (--count_ == 0) {
            changed_.notify_all();
        }
    }
    void wait() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return count_ <= 0; });
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    int count_;
};

}  // namespace sluice

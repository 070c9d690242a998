#include "tests/support/thread_collective.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace sluice::test {

class ThreadCollective::Member final : public CollectiveGroup {
public:
    Member(ThreadCollective& group, int rank) : group_(group), rank_(rank), broken_(group.broken_[rank]) {}

    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return group_.size_; }

    Status exchange(std::span<const Transfer> sends, std::span<const Transfer> receives, Deadline deadline) override {
        std::unique_lock lock(group_.mutex_);
        if (++group_.exchanges_ == group_.failing_) {
            broken_ = internal_error("an exchange was made to fail");
        }
        if (!broken_.ok()) {
            return broken_;
        }
        for (const Transfer& one : sends) {
            group_.sent_[{rank_, one.peer}].emplace_back(one.data, one.data + one.bytes);
        }
        group_.changed_.notify_all();
        for (const Transfer& one : receives) {
            auto& queue = group_.sent_[{one.peer, rank_}];
            // Bounded, since no deadline may be never.
            const auto until = std::min(deadline.when(), Deadline::after(std::chrono::seconds(60)).when());
            group_.changed_.wait_until(lock, until, [&] { return !broken_.ok() || !queue.empty(); });
            if (broken_.ok() && queue.empty()) {
                broken_ = deadline_exceeded("a peer takes no part in the exchange");
            }
            if (!broken_.ok()) {
                return broken_;
            }
            if (static_cast<std::int64_t>(queue.front().size()) != one.bytes) {
                broken_ = internal_error("a receive has another size than its send");
                return broken_;
            }
            std::memcpy(one.data, queue.front().data(), queue.front().size());
            queue.pop_front();
            group_.changed_.notify_all();
        }
        for (const Transfer& one : sends) {
            auto& queue = group_.sent_[{rank_, one.peer}];
            const auto until = std::min(deadline.when(), Deadline::after(std::chrono::seconds(60)).when());
            group_.changed_.wait_until(lock, until, [&] { return !broken_.ok() || queue.empty(); });
            if (broken_.ok() && !queue.empty()) {
                broken_ = deadline_exceeded("a peer takes no part in the exchange");
            }
            SLUICE_RETURN_IF_ERROR(broken_);
        }
        return ok_status();
    }

    void abort() override {
        const std::lock_guard lock(group_.mutex_);
        broken_ = Status(StatusCode::kAborted, "the exchange was stopped");
        group_.changed_.notify_all();
    }
    [[nodiscard]] bool failed() const override {
        const std::lock_guard lock(group_.mutex_);
        return !broken_.ok();
    }

private:
    ThreadCollective& group_;
    const int rank_;
    Status& broken_;  // under the group's mutex
};

std::unique_ptr<CollectiveGroup> ThreadCollective::member(int rank) {
    const std::lock_guard lock(mutex_);
    return std::make_unique<Member>(*this, rank);
}

void ThreadCollective::fail_exchange(int nth) {
    const std::lock_guard lock(mutex_);
    failing_ = exchanges_ + nth;
}

int ThreadCollective::exchanges() {
    const std::lock_guard lock(mutex_);
    return exchanges_;
}

}  // namespace sluice::test

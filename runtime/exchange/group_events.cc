#include "runtime/exchange/group_events.h"

namespace sluice {

void GroupEvents::reset() {
    const std::lock_guard lock(mutex_);
    done_.assign(done_.size(), false);
    count_ = 0;
    over_ = false;
    outcome_ = ok_status();
}

void GroupEvents::group_done(GroupId group) {
    {
        const std::lock_guard lock(mutex_);
        if (done_[static_cast<std::size_t>(group)]) {
            return;
        }
        done_[static_cast<std::size_t>(group)] = true;
        order_[count_++] = group;
    }
    changed_.notify_all();
}

void GroupEvents::finish(const Status& status) {
    {
        const std::lock_guard lock(mutex_);
        if (over_) {
            return;
        }
        over_ = true;
        outcome_ = status;
    }
    changed_.notify_all();
}

GroupEvents::State GroupEvents::wait(std::size_t seen, Deadline deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.when(), [&] { return count_ > seen || over_; });
    return {count_, over_};
}

bool GroupEvents::wait_over(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.when(), [&] { return over_; });
}

bool GroupEvents::wait_group(GroupId group, Deadline deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.when(), [&] { return over_ || done_[static_cast<std::size_t>(group)]; });
}

GroupId GroupEvents::order_of(std::size_t index) {
    const std::lock_guard lock(mutex_);
    return order_[index];
}

Status GroupEvents::outcome() {
    const std::lock_guard lock(mutex_);
    return outcome_;
}

}  // namespace sluice

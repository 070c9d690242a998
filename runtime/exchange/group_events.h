#pragma once

#include "planner/ids.h"
#include "runtime/base/status.h"
#include "runtime/services/deadline.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace sluice {

/// How the event loop tells a waiting caller that groups have come to an end (landed, or been released), or that the
/// version is over. Any thread; allocates nothing after construction.
class GroupEvents {
public:
    /// `groups` bounds the group numbers.
    explicit GroupEvents(int groups)
        : order_(static_cast<std::size_t>(groups)), done_(static_cast<std::size_t>(groups), false) {}

    /// Forgets everything: a new version.
    void reset();

    void group_done(GroupId group);
    /// The version is over, with this outcome; the first call counts.
    void finish(const Status& status);

    /// Waits until more than `seen` groups are done, or the version is over. Returns the number of groups done, in order_of().
    /// `over` tells which; running into the deadline counts as neither.
    struct State {
        std::size_t groups_done = 0;
        bool over = false;
    };
    State wait(std::size_t seen, Deadline deadline);
    /// Waits for the end of the version; false when the deadline came first.
    bool wait_over(Deadline deadline);
    bool wait_group(GroupId group, Deadline deadline);

    /// The group that was the `index`-th to be done.
    [[nodiscard]] GroupId order_of(std::size_t index);
    [[nodiscard]] Status outcome();

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<GroupId> order_;
    std::vector<bool> done_;
    std::size_t count_ = 0;
    bool over_ = false;
    Status outcome_;
};

}  // namespace sluice

#pragma once

#include "runtime/services/collective_group.h"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace sluice::test {

/// A CollectiveGroup of threads of one process, over memory that they all see. Outlives its members.
class ThreadCollective {
public:
    explicit ThreadCollective(int size) : size_(size) {}
    /// All members of one rank are one: a failure of one is that of the others.
    std::unique_ptr<CollectiveGroup> member(int rank);

    /// The exchange number `nth` (from 1, counted over all ranks) fails.
    void fail_exchange(int nth);
    [[nodiscard]] int exchanges();

private:
    class Member;

    const int size_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> sent_;  // by sender and receiver
    std::map<int, Status> broken_;                                            // by rank
    int exchanges_ = 0;
    int failing_ = 0;
};

}  // namespace sluice::test

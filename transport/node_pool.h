#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

namespace sluice::transport {

/// Nodes that are taken and given back all the time. Grows, by doubling, to the most that were out at once, then
/// allocates nothing more. `T` has a member `T* next_free`. One thread, or under the owner's lock.
template <class T>
class NodePool {
public:
    T* take() {
        if (free_ == nullptr) {
            const std::size_t more = std::max(kFirstNodes, nodes_.size());
            for (std::size_t i = 0; i < more; ++i) {
                give_back(&nodes_.emplace_back());
            }
        }
        T* node = free_;
        free_ = node->next_free;
        return node;
    }
    void give_back(T* node) {
        node->next_free = free_;
        free_ = node;
    }

private:
    static constexpr std::size_t kFirstNodes = 16;

    std::deque<T> nodes_;
    T* free_ = nullptr;
};

}  // namespace sluice::transport

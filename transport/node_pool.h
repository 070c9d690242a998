#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

namespace sluice::transport {

/// Nodes that are taken and given back all the time. The first take makes `first` of them; from there on it grows, by doubling, to
/// the most that were out at once, then allocates nothing more. `T` has a member `T* next_free`. One thread, or under the owner's lock.
template <class T>
class NodePool {
public:
    explicit NodePool(std::size_t first = 16) : first_(first) {}
    T* take() {
        if (free_ == nullptr) {
            const std::size_t more = std::max(first_, nodes_.size());
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
    std::size_t first_;
    std::deque<T> nodes_;
    T* free_ = nullptr;
};

}  // namespace sluice::transport

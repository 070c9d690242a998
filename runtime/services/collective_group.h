#pragma once

#include "runtime/base/status.h"
#include "runtime/services/deadline.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

/// Ranks, each with a GPU of its own, that move bytes between their memories together. Implemented in runtime/cuda with NCCL.
///
/// Threads: exchange() is called on one thread at a time; abort() on any.
class CollectiveGroup {
public:
    /// Bytes that go to a peer, or come from it, in memory of this rank's device.
    struct Transfer {
        int peer = 0;  ///< Its number in the group.
        std::byte* data = nullptr;
        std::int64_t bytes = 0;  ///< Above 0.
    };

    virtual ~CollectiveGroup() = default;

    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;

    /// Collective over those who have anything to do with each other: the n-th send of a to b is what the n-th receive of b from a gets,
    /// and as long. Blocks until all of this rank's transfers are done; what is sent must be in memory before. An error (a peer that
    /// died, the deadline, abort()) is for good: what was received is undefined, and every later exchange fails.
    virtual Status exchange(std::span<const Transfer> sends, std::span<const Transfer> receives, Deadline deadline) = 0;

    /// Ends the exchange that runs, and every later one, with kAborted. Does not wait.
    virtual void abort() = 0;
    /// Whether an exchange of this rank has failed, or abort() was called. Any thread.
    [[nodiscard]] virtual bool failed() const = 0;
};

}  // namespace sluice

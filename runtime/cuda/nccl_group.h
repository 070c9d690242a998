#pragma once

#include "runtime/base/status.h"
#include "runtime/services/collective_group.h"
#include "runtime/services/deadline.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace sluice {

/// A CollectiveGroup over NCCL, whose library is looked up at run time, and NCCL's own collectives, with which transfers are compared.
///
/// Collectives are called by all ranks, in one order. They return when they are queued on stream(), which may be before anything has moved; memory
/// is the device's, which is the calling thread's current one after every call but abort() and failed(). Threads: as for exchange().
class NcclGroup : public CollectiveGroup {
public:
    /// What lies at `data` at `root` comes to `data` of all others.
    virtual Status broadcast(std::byte* data, std::int64_t bytes, int root, Deadline deadline) = 0;
    /// `data` has a place of `bytes` for each rank; each has filled its own, and gets those of all others.
    virtual Status all_gather(std::byte* data, std::int64_t bytes, Deadline deadline) = 0;
    /// A cudaStream_t: what is ordered after it comes after all that was queued, and the other way round.
    [[nodiscard]] virtual void* stream() const = 0;
    /// Blocks until all that was queued is done, or can never be.
    virtual Status wait(Deadline deadline) = 0;
};

/// A name for a new group: made by one of its ranks, known to all of them. An error says why there is no NCCL here, so that ranks can agree on it
/// before they wait for each other.
Result<std::vector<std::byte>> make_nccl_group_id();

/// Collective over the `size` ranks of the group, each with another CUDA device: `ordinal` is that of this rank. Connects all of them
/// with each other, so that a later exchange allocates nothing. The device is the calling thread's current one afterwards.
Result<std::unique_ptr<NcclGroup>> open_nccl_group(std::span<const std::byte> id, int rank, int size, int ordinal,
                                                   Deadline deadline);

}  // namespace sluice

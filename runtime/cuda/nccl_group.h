#pragma once

#include "runtime/base/status.h"
#include "runtime/services/collective_group.h"
#include "runtime/services/deadline.h"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

/// A CollectiveGroup over NCCL, whose library is looked up at run time.
namespace sluice {

/// A name for a new group: made by one of its ranks, known to all of them. An error says why there is no NCCL here, so that ranks can agree on it
/// before they wait for each other.
Result<std::vector<std::byte>> make_nccl_group_id();

/// Collective over the `size` ranks of the group, each with another CUDA device: `ordinal` is that of this rank. Connects all of them
/// with each other, so that a later exchange allocates nothing.
Result<std::unique_ptr<CollectiveGroup>> open_nccl_group(std::span<const std::byte> id, int rank, int size, int ordinal,
                                                         Deadline deadline);

}  // namespace sluice

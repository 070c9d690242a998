#pragma once

#include "runtime/base/status.h"
#include "runtime/cuda/nccl_group.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/services/deadline.h"

#include <memory>
#include <optional>

namespace sluice::cli {

/// Collective over all ranks of the run: `size` of them have a place in an NCCL group, which its first one names, and each of those another device,
/// `ordinal`. Null for the others. Every rank gets the same failure.
Result<std::unique_ptr<NcclGroup>> open_nccl_ranks(Bootstrap& bootstrap, std::optional<int> place, int size,
                                                   int ordinal, Deadline deadline);

}  // namespace sluice::cli

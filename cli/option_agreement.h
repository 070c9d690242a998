#pragma once

#include "cli/sync_options.h"
#include "runtime/base/status.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/services/deadline.h"

namespace sluice::cli {

/// Collective. The two programs of one mpirun are given their options apart: what both sides must do alike (versions, verification, NCCL gathers) is
/// compared, and targets of results that one of them was given become everybody's. An error is the same on all ranks and names two that differ.
Status agree_on_options(Bootstrap& bootstrap, SyncOptions& options, Deadline deadline);

}  // namespace sluice::cli

#pragma once

#include "cli/model_source.h"
#include "cli/rank_report.h"
#include "cli/sync_options.h"
#include "runtime/base/settings.h"
#include "runtime/base/status.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/exchange/session.h"
#include "runtime/services/collective_group.h"

namespace sluice::cli {

/// What a rank of `sluice sync` works with.
struct SyncContext {
    const SyncOptions& options;
    const Settings& settings;
    const Model& model;
    Bootstrap& bootstrap;
    Session& session;
    int own_rank = 0;                         ///< Within its side.
    Device* device = nullptr;                 ///< Where this rank's weights lie; null: host memory.
    CollectiveGroup* gather_group = nullptr;  ///< Of the trainers that gather by NCCL.
    std::function<void()> ready;              ///< Set-up is over and agreed on: the bootstrap is needed no more.
};

/// Brings all ranks to the start of a version together, so that its time is that of the sync and not of somebody's optimiser.
Status start_together(const SyncContext& context, std::uint64_t version, const Status& mine = ok_status());

/// After the last version, on all ranks: what one of them could not write is the outcome of all. Waits for slow disks.
Status agree_on_dump(const SyncContext& context, const Status& mine = ok_status());

/// CPU time that the transport thread has used so far, in seconds.
double transport_cpu_seconds(Session& session);

/// Run one rank to the end of its last version, or to the first failure that all agree on; `finish` is then called with
/// the outcome while the links are still open, and the links are closed after it.
using Finish = std::function<void(const Status& outcome, const RankReport& report)>;
void run_trainer(const SyncContext& context, const Finish& finish);
void run_worker(const SyncContext& context, const Finish& finish);

}  // namespace sluice::cli

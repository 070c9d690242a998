#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/layout.h"
#include "planner/model_config.h"
#include "runtime/base/status.h"

namespace sluice {

/// Runs the loader of `config`'s architecture once on recording tensors, for rank `pool_rank` of a pool, and returns
/// what it copies. Refuses (plan refused) what the engine's own preconditions refuse: indivisible heads, parts, vocabulary.
Result<Demand> dry_run(const Catalogue& catalogue, const ModelConfig& config, const WorkerLayout& layout,
                       int pool_rank);

}  // namespace sluice

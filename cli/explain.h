#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/plan.h"
#include "runtime/base/status.h"

#include <span>
#include <string>

namespace sluice::cli {

/// What `--explain RANK:PARAM` prints: which boxes of which tensors land where in a parameter of a worker, from whom and by which path.
/// `demands` are those of `plan`, just made or read from a file. An unknown rank or parameter is an invalid argument.
Result<std::string> explain(const Catalogue& catalogue, std::span<const Demand> demands, const Plan& plan,
                            const std::string& rank_and_parameter);

}  // namespace sluice::cli

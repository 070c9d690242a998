#pragma once

#include "cli/plan_builder.h"

#include <string>

namespace sluice::cli {

/// What `--explain RANK:PARAM` prints: which boxes of which tensors land where in a parameter of a worker, from whom and by which path.
/// An unknown rank or parameter is an invalid argument.
Result<std::string> explain(const Catalogue& catalogue, const BuiltPlan& plan, const std::string& rank_and_parameter);

}  // namespace sluice::cli

#pragma once

#include "planner/plan_codec.h"
#include "runtime/base/status.h"

#include <string>

namespace sluice::cli {

/// A plan that --save wrote. Its errors name the file.
Result<PlanFile> read_plan_file(const std::string& path);

/// What differs between a plan of file `path` and the present one, one line each; empty when they are the same.
std::string plan_differences(const std::string& path, const PlanFile& theirs, const PlanFile& ours);

}  // namespace sluice::cli

#pragma once

#include "runtime/base/status.h"

namespace sluice::cli {

/// What the program ends with. All ranks of a sync end with that of the first failure.
enum ExitCode : int {
    kDone = 0,
    kUnfit = 1,        ///< `doctor`: a pull would be emulated on this node, or fail.
    kBadInput = 2,     ///< Wrong by arguments and files alone.
    kPlanRefused = 3,  ///< No correct plan exists.
    kSyncFailed = 4,
    kDifference = 5,  ///< --verify or --diff found one.
};

ExitCode exit_code(StatusCode code);

/// Writes "sluice: <message>" as one line to stderr, unless `status` is ok, and returns its exit code.
ExitCode report(const Status& status);

}  // namespace sluice::cli

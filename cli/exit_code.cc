#include "cli/exit_code.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace sluice::cli {

ExitCode exit_code(StatusCode code) {
    switch (code) {
        case StatusCode::kOk:
            return kDone;
        case StatusCode::kInvalidArgument:
        case StatusCode::kUnsupported:
            return kBadInput;
        case StatusCode::kPlanRefused:
            return kPlanRefused;
        case StatusCode::kMismatch:
            return kDifference;
        case StatusCode::kPeerLost:
        case StatusCode::kDeadlineExceeded:
        case StatusCode::kAborted:
        case StatusCode::kResourceExhausted:
        case StatusCode::kInternal:
            return kSyncFailed;
    }
    return kSyncFailed;
}

ExitCode report(const Status& status) {
    if (!status.ok()) {
        std::string line = status.message();
        std::replace_if(line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
        fmt::print(stderr, "sluice: {}\n", line);
    }
    return exit_code(status.code());
}

}  // namespace sluice::cli

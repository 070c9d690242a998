#include "runtime/base/status.h"

namespace sluice {

const char* to_string(StatusCode code) {
    switch (code) {
        case StatusCode::kOk:
            return "ok";
        case StatusCode::kInvalidArgument:
            return "invalid argument";
        case StatusCode::kPlanRefused:
            return "plan refused";
        case StatusCode::kPeerLost:
            return "peer lost";
        case StatusCode::kDeadlineExceeded:
            return "deadline exceeded";
        case StatusCode::kAborted:
            return "aborted";
        case StatusCode::kMismatch:
            return "mismatch";
        case StatusCode::kResourceExhausted:
            return "resource exhausted";
        case StatusCode::kUnsupported:
            return "unsupported";
        case StatusCode::kInternal:
            return "internal error";
    }
    return "unknown";
}

Status Status::with_context(const std::string& context) const& {
    Status out = *this;
    out.message_ = context + ": " + message_;
    return out;
}

Status invalid_argument(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
Status plan_refused(std::string message) { return {StatusCode::kPlanRefused, std::move(message)}; }
Status peer_lost(std::string message, int peer) { return {StatusCode::kPeerLost, std::move(message), peer}; }
Status deadline_exceeded(std::string message) { return {StatusCode::kDeadlineExceeded, std::move(message)}; }
Status internal_error(std::string message) { return {StatusCode::kInternal, std::move(message)}; }

}  // namespace sluice

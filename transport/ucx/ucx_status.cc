#include "transport/ucx/ucx_status.h"

#include <fmt/format.h>

namespace sluice::transport {
namespace {

StatusCode code_of(ucs_status_t status) {
    switch (status) {
        case UCS_OK:
            return StatusCode::kOk;
        case UCS_ERR_CANCELED:
            return StatusCode::kAborted;
        // Which of these a dead peer shows depends on the transport and on luck; a read of a dead process is an
        // input/output error over CMA.
        case UCS_ERR_IO_ERROR:
        case UCS_ERR_TIMED_OUT:
        case UCS_ERR_UNREACHABLE:
        case UCS_ERR_REJECTED:
        case UCS_ERR_NOT_CONNECTED:
        case UCS_ERR_CONNECTION_RESET:
        case UCS_ERR_ENDPOINT_TIMEOUT:
            return StatusCode::kPeerLost;
        case UCS_ERR_NO_MEMORY:
        case UCS_ERR_NO_RESOURCE:
        case UCS_ERR_EXCEEDS_LIMIT:
        case UCS_ERR_BUSY:
            return StatusCode::kResourceExhausted;
        case UCS_ERR_UNSUPPORTED:
        case UCS_ERR_NOT_IMPLEMENTED:
        case UCS_ERR_NO_DEVICE:
            return StatusCode::kUnsupported;
        case UCS_ERR_INVALID_PARAM:
        case UCS_ERR_INVALID_ADDR:
            return StatusCode::kInvalidArgument;
        default:
            // Failures of a link or an endpoint have ranges of codes, which are not named one by one.
            return status <= UCS_ERR_FIRST_LINK_FAILURE && status >= UCS_ERR_LAST_ENDPOINT_FAILURE
                       ? StatusCode::kPeerLost
                       : StatusCode::kInternal;
    }
}

}  // namespace

Status from_ucs(ucs_status_t status, std::string_view what, int peer) {
    const StatusCode code = code_of(status);
    if (code == StatusCode::kOk) {
        return ok_status();
    }
    std::string message = fmt::format("{}: {}", what, ucs_status_string(status));
    if (peer >= 0) {
        return {code, std::move(message), peer};
    }
    return {code == StatusCode::kPeerLost ? StatusCode::kInternal : code, std::move(message)};
}

}  // namespace sluice::transport

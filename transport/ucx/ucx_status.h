#pragma once

#include "runtime/base/status.h"

#include <ucs/type/status.h>

#include <string_view>

namespace sluice::transport {

/// Our Status for UCX's: ok for UCS_OK, else `what` was tried and the reason. `peer` is a world rank, or -1 when no
/// peer is concerned; an error of a link is then no loss of a peer.
Status from_ucs(ucs_status_t status, std::string_view what, int peer = -1);

}  // namespace sluice::transport

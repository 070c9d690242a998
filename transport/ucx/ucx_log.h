#pragma once

#include <string>

namespace sluice::transport {

/// From now on, lines of UCX go to our log, as debug lines: what UCX calls an error (a peer that died) is reported by us
/// where it matters. Once per process is enough; UCX's log handlers are global. Any thread.
void route_ucx_log();

/// The last error that UCX logged on this thread since the last call, in brackets and after a space, or nothing: the
/// detail that its status codes lack. Only when the log is routed.
std::string take_ucx_error();

}  // namespace sluice::transport

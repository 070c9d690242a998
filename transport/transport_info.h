#pragma once

#include "runtime/base/status.h"
#include "transport/ucx/ucx_library.h"
#include "transport/ucx/ucx_transport.h"

#include <string>
#include <vector>

namespace sluice::transport {

/// What this process could move weights with, for `sluice info`.
struct TransportInfo {
    UcxLibrary library;
    std::vector<std::string> transports;    ///< "tcp/eth0", "cma/memory"; in UCX's order, each once.
    std::vector<std::string> memory_kinds;  ///< "host", "cuda".
};

/// Refuses a UCX that is too old (see check_ucx) before anything else of it is called. Opens a UCX context for a
/// moment. Any thread.
Result<TransportInfo> inspect_transports(const UcxOptions& options);

}  // namespace sluice::transport

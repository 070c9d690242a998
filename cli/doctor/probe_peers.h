#pragma once

#include "cli/doctor/link_probe.h"
#include "runtime/base/status.h"

#include <functional>

/// The two processes of a link probe. Each runs in a process of its own, and talks to the other over one end of a pair of sockets.
namespace sluice::cli {

/// Offers memory until the other end is closed; holds still, its event loop included, while the reader wants it to.
Status run_probe_owner(const LinkProbeOptions& options, int socket);

/// Reads from it. Calls `tell` with what it has found out, also when it fails; before it tears anything down, which may wait for what has failed.
void run_probe_reader(const LinkProbeOptions& options, int socket, const std::function<void(const LinkProbe&)>& tell);

}  // namespace sluice::cli

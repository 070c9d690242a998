#pragma once

#include "cli/doctor/link_probe.h"

/// The two processes of a link probe. Each runs in a process of its own, and talks to the other over one end of a pair of sockets.
namespace sluice::cli {

/// Offers memory until the other end is closed; holds still, its event loop included, while the reader wants it to.
Status run_probe_owner(const LinkProbeOptions& options, int socket);

/// Reads from it. What it has found out is in `probe` also when it fails.
Status run_probe_reader(const LinkProbeOptions& options, int socket, LinkProbe& probe);

}  // namespace sluice::cli

#pragma once

#include "runtime/base/memory_kind.h"
#include "runtime/base/settings.h"

#include <chrono>
#include <optional>
#include <string>

/// What a pull between two processes of this node would get, tried out.
namespace sluice::cli {

struct LinkProbe {
    std::string transport;         ///< As UCX names it; empty when it did not come that far.
    bool said_one_sided = false;   ///< What UCX says.
    bool found_one_sided = false;  ///< A read ended while the owner's process did nothing.
    double bytes_per_second = 0;   ///< Of reads of 1 MiB, some in flight; of one pair of processes.
    std::string problem;           ///< Why there is no answer, or why reads failed; one line.
    std::string cma_refused;  ///< Why the kernel does not read the other process's memory for one; empty when it does.
    std::string mapping_refused;  ///< Why one process may not map the other's shared memory; empty when it may.
};

struct LinkProbeOptions {
    Settings settings;
    /// Within the host, by whatever is fastest; or by network devices only, as between hosts, looped back on this one.
    bool network_only = false;
    MemoryKind memory = MemoryKind::kHost;  ///< kCuda: of device 0.
};

/// The value of UCX_TLS that leaves of `allowed` (the user's; empty: all) what two hosts have in common: neither shared memory nor CMA
/// nor CUDA IPC.
std::string network_transports(const std::string& allowed);

/// Forks an owner and a reader, which are killed at the limit. Starts nothing in the calling process, which must have neither started
/// UCX or CUDA nor other threads.
LinkProbe probe_link(const LinkProbeOptions& options, std::chrono::seconds limit);

}  // namespace sluice::cli

#pragma once

#include "cli/doctor/link_probe.h"
#include "cli/doctor/node_facts.h"
#include "runtime/cuda/cuda_probe.h"
#include "transport/transport_info.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// What the facts about a node mean for pulls, for `sluice doctor`. Values in, values out.
namespace sluice::cli {

/// One link that was tried out.
struct TriedLink {
    bool network_only = false;
    MemoryKind memory = MemoryKind::kHost;
    LinkProbe probe;

    /// Reads need the owner's processor, or there are none.
    [[nodiscard]] bool emulated() const {
        return !probe.problem.empty() || !probe.said_one_sided || !probe.found_one_sided;
    }
    /// "host memory, between hosts".
    [[nodiscard]] std::string name() const;
};

/// All that is known about a node.
struct Examination {
    transport::UcxLibrary ucx;
    Status ucx_status;  ///< Why this UCX cannot be used; then there are neither transports nor links.
    std::vector<std::string> transports;
    std::vector<std::string> memory_kinds;
    CudaState cuda;
    std::string mpi;
    NodeFacts node;
    std::vector<TriedLink> links;
};

enum class Severity : std::uint8_t {
    kGood,
    kNote,  ///< Something will not work, or be slower, that not everybody needs.
    kBad,   ///< A pull would be emulated, or fail.
};

struct Finding {
    std::string subject;  ///< One word.
    Severity severity = Severity::kGood;
    std::string what;
    std::string remedy;  ///< Empty when nothing is to be done.
};

/// In the order in which they are best read: the library, what pulls get, then what may be the reason.
std::vector<Finding> examine(const Examination& examination);

}  // namespace sluice::cli

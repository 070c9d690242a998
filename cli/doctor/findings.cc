#include "cli/doctor/findings.h"

#include "planner/plan_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace sluice::cli {
namespace {

using Findings = std::vector<Finding>;

// Weights of a rank are registered whole; no model that needs a cluster fits below this.
constexpr std::uint64_t kSmallLockedLimit = std::uint64_t{1} << 30;
constexpr std::uint64_t kSmallSharedMemory = std::uint64_t{1} << 30;

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

std::string human(std::uint64_t bytes) { return human_bytes(static_cast<std::int64_t>(bytes)); }

bool small_locked_limit(const NodeFacts& node) {
    return node.locked_bytes && !node.ignores_locked_limit && *node.locked_bytes < kSmallLockedLimit;
}

std::string locked_limit(const NodeFacts& node) { return fmt::format("{} KiB", *node.locked_bytes / 1024); }

bool has_transport(const Examination& examination, std::string_view prefix) {
    return std::ranges::any_of(examination.transports,
                               [&](const std::string& name) { return starts_with(name, prefix); });
}

bool has_active_port(const NodeFacts& node) {
    return std::ranges::any_of(node.ports, [](const VerbsPort& port) { return port.state == "ACTIVE"; });
}

void examine_ucx(const Examination& examination, Findings& out) {
    const std::string library = fmt::format("UCX {} of {}", examination.ucx.version(), examination.ucx.path);
    if (!examination.ucx_status.ok()) {
        out.push_back({"UCX", Severity::kBad, examination.ucx_status.message(),
                       "build or install UCX >= 1.22 and name it with UCX_ROOT"});
        return;
    }
    out.push_back({"UCX", Severity::kGood, fmt::format("{}: {}", library, fmt::join(examination.transports, " ")), ""});
    const bool verbs = has_transport(examination, "rc_") || has_transport(examination, "dc_") ||
                       has_transport(examination, "ud_") || has_transport(examination, "srd");
    // A port that is down is no fault of the library's.
    if (has_active_port(examination.node) && !verbs) {
        out.push_back(
            {"UCX", Severity::kBad,
             fmt::format("{} uses none of this node's verbs devices ({} ports)", library,
                         examination.node.ports.size()),
             "use a UCX that was built with verbs (UCX_ROOT or LD_LIBRARY_PATH; `ucx_info -b` says --with-verbs), "
             "and look at UCX_TLS and UCX_NET_DEVICES"});
    }
    const bool cuda = std::ranges::find(examination.memory_kinds, "cuda") != examination.memory_kinds.end();
    // Without a GPU that works UCX has no CUDA either.
    if (!examination.node.gpus.empty() && examination.cuda.problem.empty() && !cuda) {
        out.push_back(
            {"UCX", Severity::kBad, fmt::format("{} takes GPU memory for host memory", library),
             "use a UCX that was built with CUDA, and if UCX_TLS is set let it include cuda; or move weights with "
             "--staged"});
    }
}

// What would make a link one-sided that is not.
std::string remedy_for(const TriedLink& link, const Examination& examination) {
    const std::string& transport = link.probe.transport;
    if (!link.probe.problem.empty() && small_locked_limit(examination.node) && !examination.node.ports.empty()) {
        return "raise the limit of locked memory: see memory below";
    }
    if (link.memory == MemoryKind::kCuda && !examination.cuda.problem.empty()) {
        return "make CUDA work: see GPU below";
    }
    if (!link.network_only) {
        if (!link.probe.cma_refused.empty()) {
            return "let processes of one user read each other: see ptrace below";
        }
        return "let UCX use cma (for host memory) and cuda_ipc (for GPU memory): look at UCX_TLS";
    }
    if (starts_with(transport, "ud_")) {
        return "unreliable datagrams have no reads: let UCX use rc or dc (UCX_TLS=rc,self or no UCX_TLS at all)";
    }
    if (examination.node.ports.empty()) {
        return fmt::format(
            "this node has no verbs device: pulls between hosts go over TCP{}, which is right for trying "
            "out only",
            link.memory == MemoryKind::kCuda ? " and only with --staged" : "");
    }
    if (!has_active_port(examination.node)) {
        return "no port is active: see devices below";
    }
    if (link.memory == MemoryKind::kCuda) {
        return "the device cannot read GPU memory: see GPUDirect below, or move weights with --staged";
    }
    return "verbs devices are there and UCX does not read by them: see UCX, devices and memory here, and unset UCX_TLS "
           "and "
           "UCX_NET_DEVICES";
}

void examine_links(const Examination& examination, Findings& out) {
    for (const TriedLink& link : examination.links) {
        Finding finding{"pull", link.emulated() ? Severity::kBad : Severity::kGood, "", ""};
        if (!link.probe.problem.empty()) {
            finding.what = fmt::format("{}: fails: {}", link.name(), link.probe.problem);
        } else {
            const char* sided = !link.emulated()            ? "one-sided, measured"
                                : link.probe.said_one_sided ? "UCX says one-sided, but reads waited for the owner"
                                                            : "emulated: every read needs the owner's processor";
            finding.what = fmt::format("{}: {}, {}, {}/s", link.name(), link.probe.transport, sided,
                                       human(static_cast<std::uint64_t>(link.probe.bytes_per_second)));
        }
        if (link.emulated()) {
            finding.remedy = remedy_for(link, examination);
        }
        out.push_back(std::move(finding));
    }
}

void examine_devices(const NodeFacts& node, Findings& out) {
    for (const VerbsPort& port : node.ports) {
        const bool active = port.state == "ACTIVE";
        const std::string what = fmt::format("{} {}, {}, {}{}", port.name, port.state, port.link_layer, port.rate,
                                             port.numa_node >= 0 ? fmt::format(", NUMA node {}", port.numa_node) : "");
        std::string remedy;
        if (!active) {
            remedy =
                port.link_layer == "InfiniBand"
                    ? "look at cable and switch, and at the subnet manager if the state is INIT; leave the port out "
                      "with UCX_NET_DEVICES until then"
                    : "bring its network interface up (`rdma link` names it, `ip link set NAME up`) and give it an "
                      "address; leave the port out with UCX_NET_DEVICES until then";
        }
        out.push_back({"devices", active ? Severity::kGood : Severity::kNote, what, remedy});
    }
    if (node.ports.empty()) {
        out.push_back(
            {"devices", Severity::kNote, "no verbs devices in /sys/class/infiniband",
             "where there should be some: load the driver of the NIC (mlx5_ib, irdma, bnxt_re, efa), and in a "
             "container pass /dev/infiniband through (--device=/dev/infiniband)"});
    } else if (node.usable_verbs_files == 0) {
        out.push_back(
            {"devices", Severity::kBad,
             node.verbs_files == 0 ? "verbs devices exist, but there is no /dev/infiniband/uverbs*"
                                   : "this user may not open /dev/infiniband/uverbs*",
             node.verbs_files == 0
                 ? "load ib_uverbs; start a container with --device=/dev/infiniband"
                 : "give the user read and write access (udev rule MODE=\"0666\", or the group of the files)"});
    }
}

void examine_memory(const NodeFacts& node, Findings& out) {
    // The limit concerns only what NICs read.
    if (!node.locked_bytes || node.ignores_locked_limit) {
        out.push_back({"memory", Severity::kGood,
                       node.locked_bytes
                           ? fmt::format("locked memory: limit {}, which this process may exceed", locked_limit(node))
                           : "locked memory: unlimited",
                       ""});
    } else {
        const bool small = small_locked_limit(node);
        const Severity severity = !small ? Severity::kGood : node.ports.empty() ? Severity::kNote : Severity::kBad;
        out.push_back(
            {"memory", severity,
             fmt::format("locked memory: at most {}; weights, slots and staging that a NIC reads count",
                         locked_limit(node)),
             small ? "raise it: ulimit -l unlimited, memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity "
                     "of the service that starts jobs, --ulimit memlock=-1 of a container"
                   : ""});
    }
    const bool little = node.shared_memory_bytes < kSmallSharedMemory;
    out.push_back({"memory", little ? Severity::kNote : Severity::kGood,
                   fmt::format("/dev/shm: {} free", human(node.shared_memory_bytes)),
                   little ? "raise it, for MPI and for UCX: --shm-size=8g of a container, or mount -o remount,size=8g "
                            "/dev/shm"
                          : ""});
}

void examine_ptrace(const Examination& examination, Findings& out) {
    const auto tried =
        std::ranges::find_if(examination.links, [](const TriedLink& link) { return link.memory == MemoryKind::kHost; });
    if (tried == examination.links.end()) {
        return;
    }
    const NodeFacts& node = examination.node;
    const std::string scope =
        node.ptrace_scope ? fmt::format("kernel.yama.ptrace_scope {}", *node.ptrace_scope) : "no Yama";
    const std::string rights = fmt::format("{}, {}CAP_SYS_PTRACE", scope, node.may_ptrace ? "" : "no ");
    const std::string& cma = tried->probe.cma_refused;
    const std::string& mapping = tried->probe.mapping_refused;
    if (cma.empty() && mapping.empty()) {
        out.push_back({"ptrace", Severity::kGood,
                       fmt::format("processes may read each other's memory (cma, mapped): {}", rights), ""});
        return;
    }
    if (!cma.empty()) {
        // Yama restricts attaching, which cma counts as; mapped copies only open what the owner has open.
        const bool yama = node.ptrace_scope.value_or(0) > 0 && !node.may_ptrace;
        out.push_back({"ptrace", Severity::kNote,
                       fmt::format("processes may not read each other's memory, so cma does not work{}: {} ({})",
                                   mapping.empty() ? " (mapped copies do)" : "", cma, rights),
                       yama ? "sysctl kernel.yama.ptrace_scope=0, or start a container with --cap-add=SYS_PTRACE"
                            : "start all ranks of a host as one user in one container, with --cap-add=SYS_PTRACE or a "
                              "seccomp profile that allows process_vm_readv"});
    }
    if (!mapping.empty()) {
        out.push_back({"ptrace", Severity::kNote,
                       fmt::format("processes may not map each other's memory, so mapped copies do not work: {} ({})",
                                   mapping, rights),
                       "start all ranks of a host as one user in one container, from a program that this user may read "
                       "and that has neither setuid bit nor file capabilities"});
    }
}

void examine_gpus(const Examination& examination, Findings& out) {
    const NodeFacts& node = examination.node;
    if (node.gpus.empty()) {
        out.push_back(
            {"GPU", Severity::kNote, describe(examination.cuda),
             "nothing, if this node has no GPU; else install its driver, and in a container pass it through"});
        return;
    }
    out.push_back({"GPU", examination.cuda.problem.empty() ? Severity::kGood : Severity::kBad,
                   describe(examination.cuda),
                   examination.cuda.problem.empty() ? ""
                                                    : "make `nvidia-smi` work, leave CUDA_VISIBLE_DEVICES unset or let "
                                                      "it name a GPU, and build Sluice with the "
                                                      "CUDA toolkit"});
    if (node.ports.empty()) {
        return;
    }
    // What was tried out counts; how the kernel came to it may not be known here.
    const bool tried = std::ranges::any_of(examination.links, [](const TriedLink& link) {
        return link.memory == MemoryKind::kCuda && link.network_only && !link.emulated();
    });
    const bool direct = node.peermem || node.open_gpu_driver || tried;
    out.push_back(
        {"GPUDirect", direct ? Severity::kGood : Severity::kBad,
         node.peermem ? "nvidia_peermem is loaded: NICs read GPU memory"
         : node.open_gpu_driver
             ? "the driver's open kernel modules export dma-bufs: NICs read GPU memory (Linux >= 5.12)"
         : tried ? "NICs read GPU memory, as was tried out"
                 : "NICs cannot read GPU memory: neither nvidia_peermem nor the driver's open kernel modules",
         direct ? ""
                : "modprobe nvidia_peermem, or install the driver's open kernel modules; until then use --staged"});
    for (const Gpu& gpu : node.gpus) {
        const auto nearest = std::ranges::min_element(node.ports, {}, [&](const VerbsPort& port) {
            return std::pair(port.state != "ACTIVE", distance(gpu, port));
        });
        const PciDistance far = distance(gpu, *nearest);
        constexpr std::array<const char*, 5> kFar = {"below one PCIe switch", "below one host bridge",
                                                     "on one NUMA node", "on another NUMA node",
                                                     "at an unknown distance"};
        const bool near = far <= PciDistance::kNumaNode;
        out.push_back({"GPUDirect", near ? Severity::kGood : Severity::kNote,
                       fmt::format("{} {}: nearest port {}, {}", gpu.address, gpu.model, nearest->name,
                                   kFar[static_cast<std::size_t>(far)]),
                       near ? ""
                            : "give the rank of this GPU a NIC of its own NUMA node (--net-device RANK=NAME); reads "
                              "across sockets take a fraction of the rate"});
    }
}

}  // namespace

std::string TriedLink::name() const {
    return fmt::format("{} memory, {}", memory == MemoryKind::kCuda ? "GPU" : "host",
                       network_only ? "between hosts" : "within the host");
}

std::vector<Finding> examine(const Examination& examination) {
    Findings out;
    examine_ucx(examination, out);
    examine_links(examination, out);
    examine_devices(examination.node, out);
    examine_memory(examination.node, out);
    examine_ptrace(examination, out);
    examine_gpus(examination, out);
    out.push_back({"MPI", Severity::kGood, examination.mpi, ""});
    return out;
}

}  // namespace sluice::cli

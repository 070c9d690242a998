#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// What a node says of itself in /sys and /proc, for `sluice doctor`. Nothing is judged here.
namespace sluice::cli {

/// A port of a device of /sys/class/infiniband.
struct VerbsPort {
    std::string name;        ///< As UCX names it: "mlx5_0:1".
    std::string state;       ///< "ACTIVE", "DOWN", "INIT", ...
    std::string link_layer;  ///< "InfiniBand" or "Ethernet".
    std::string rate;        ///< "400 Gb/sec (4X NDR)".
    std::string pci;  ///< Its place among the machine's devices, "pci0000:00/0000:00:01.0/..."; empty when it has none.
    int numa_node = -1;  ///< -1: none is known.
};

struct Gpu {
    std::string address;  ///< "0000:3b:00.0".
    std::string model;
    std::string pci;  ///< As of a port.
    int numa_node = -1;
};

struct NodeFacts {
    std::vector<VerbsPort> ports;
    std::vector<Gpu> gpus;
    /// Device files of verbs that there are and that this user can open.
    int verbs_files = 0;
    int usable_verbs_files = 0;
    std::optional<std::uint64_t> locked_bytes;  ///< RLIMIT_MEMLOCK; nothing: unlimited.
    bool ignores_locked_limit = false;          ///< CAP_IPC_LOCK.
    bool peermem = false;                       ///< The kernel module that lets NICs read GPU memory.
    bool open_gpu_driver = false;               ///< NVIDIA's open kernel modules, which export dma-bufs.
    std::uint64_t shared_memory_bytes = 0;      ///< Free in /dev/shm.
    std::optional<int> ptrace_scope;            ///< Of Yama; nothing where there is no Yama.
    bool may_ptrace = false;                    ///< CAP_SYS_PTRACE.
};

/// Reads the files below `root` ("/", or a copy for tests) and this process's limits and rights. What cannot be read is left out.
NodeFacts read_node_facts(const std::filesystem::path& root);

/// How far a GPU and a port are apart, nearest first.
enum class PciDistance : std::uint8_t { kSwitch, kHostBridge, kNumaNode, kSystem, kUnknown };
PciDistance distance(const Gpu& gpu, const VerbsPort& port);

}  // namespace sluice::cli

#include "cli/doctor/node_facts.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

// Bits of CapEff in /proc/self/status.
constexpr int kCapIpcLock = 14;
constexpr int kCapSysPtrace = 19;

std::string first_line(const fs::path& path) {
    std::ifstream stream(path);
    std::string line;
    std::getline(stream, line);
    return line;
}

// The value of "key:   value" in a file of such lines.
std::string value_of(const fs::path& path, const std::string& key) {
    std::ifstream stream(path);
    for (std::string line; std::getline(stream, line);) {
        if (line.starts_with(key + ":")) {
            const std::size_t start = line.find_first_not_of(" \t", key.size() + 1);
            return start == std::string::npos ? "" : line.substr(start);
        }
    }
    return {};
}

std::optional<int> number(const std::string& text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() ? std::optional<int>(value) : std::nullopt;
}

std::vector<fs::path> entries(const fs::path& folder) {
    std::vector<fs::path> out;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
        out.push_back(entry.path());
    }
    std::ranges::sort(out);
    return out;
}

// "pci0000:00/0000:00:01.0/0000:3b:00.0" of ".../devices/pci0000:00/0000:00:01.0/0000:3b:00.0".
std::string pci_place(const fs::path& device) {
    std::error_code error;
    const std::string resolved = fs::canonical(device, error).string();
    const std::size_t start = resolved.find("/pci");
    return error || start == std::string::npos ? "" : resolved.substr(start + 1);
}

// "4: ACTIVE" -> "ACTIVE".
std::string state_of(const fs::path& port) {
    const std::string line = first_line(port / "state");
    const std::size_t colon = line.find(": ");
    return colon == std::string::npos ? line : line.substr(colon + 2);
}

std::vector<VerbsPort> read_ports(const fs::path& root) {
    std::vector<VerbsPort> out;
    for (const fs::path& device : entries(root / "sys/class/infiniband")) {
        for (const fs::path& port : entries(device / "ports")) {
            VerbsPort& fact = out.emplace_back();
            fact.name = device.filename().string() + ":" + port.filename().string();
            fact.state = state_of(port);
            fact.link_layer = first_line(port / "link_layer");
            fact.rate = first_line(port / "rate");
            fact.pci = pci_place(device / "device");
            fact.numa_node = number(first_line(device / "device/numa_node")).value_or(-1);
        }
    }
    return out;
}

std::vector<Gpu> read_gpus(const fs::path& root) {
    std::vector<Gpu> out;
    for (const fs::path& folder : entries(root / "proc/driver/nvidia/gpus")) {
        Gpu& gpu = out.emplace_back();
        gpu.address = folder.filename().string();
        gpu.model = value_of(folder / "information", "Model");
        const fs::path device = root / "sys/bus/pci/devices" / gpu.address;
        gpu.pci = pci_place(device);
        gpu.numa_node = number(first_line(device / "numa_node")).value_or(-1);
    }
    return out;
}

void read_rights(const fs::path& root, NodeFacts& facts) {
    const std::string text = value_of(root / "proc/self/status", "CapEff");
    std::uint64_t capabilities = 0;
    std::from_chars(text.data(), text.data() + text.size(), capabilities, 16);
    facts.ignores_locked_limit = (capabilities >> kCapIpcLock & 1) != 0;
    facts.may_ptrace = (capabilities >> kCapSysPtrace & 1) != 0;
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        facts.locked_bytes = limit.rlim_cur;
    }
    facts.ptrace_scope = number(first_line(root / "proc/sys/kernel/yama/ptrace_scope"));
}

}  // namespace

NodeFacts read_node_facts(const fs::path& root) {
    NodeFacts facts;
    facts.ports = read_ports(root);
    facts.gpus = read_gpus(root);
    for (const fs::path& file : entries(root / "dev/infiniband")) {
        if (file.filename().string().starts_with("uverbs")) {
            ++facts.verbs_files;
            facts.usable_verbs_files += ::access(file.c_str(), R_OK | W_OK) == 0 ? 1 : 0;
        }
    }
    read_rights(root, facts);
    facts.peermem = fs::exists(root / "sys/module/nvidia_peermem");
    facts.open_gpu_driver =
        first_line(root / "proc/driver/nvidia/version").find("Open Kernel Module") != std::string::npos;
    struct statvfs shared{};
    if (::statvfs((root / "dev/shm").c_str(), &shared) == 0) {
        facts.shared_memory_bytes = std::uint64_t{shared.f_bavail} * shared.f_frsize;
    }
    return facts;
}

PciDistance distance(const Gpu& gpu, const VerbsPort& port) {
    const fs::path a = gpu.pci;
    const fs::path b = port.pci;
    if (gpu.pci.empty() || port.pci.empty()) {
        return PciDistance::kUnknown;
    }
    const auto shared = std::distance(a.begin(), std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first);
    // The first name is the host bridge's, the second that of a port of its own.
    if (shared >= 2) {
        return PciDistance::kSwitch;
    }
    if (shared == 1) {
        return PciDistance::kHostBridge;
    }
    if (gpu.numa_node < 0 || port.numa_node < 0) {
        return PciDistance::kUnknown;
    }
    return gpu.numa_node == port.numa_node ? PciDistance::kNumaNode : PciDistance::kSystem;
}

}  // namespace sluice::cli

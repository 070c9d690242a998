#pragma once

#include "cli/common_options.h"
#include "runtime/base/memory_kind.h"
#include "runtime/base/settings.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice::cli {

enum class VerifyMode : std::uint8_t {
    kOff,
    kDigest,  ///< Compare chunk checksums of owner and worker.
    kFull,    ///< Compare each destination element with the value at its source coordinate.
};

/// As it is given.
const char* verify_name(VerifyMode mode);

/// Where the weights of both sides lie.
struct MemoryChoice {
    MemoryKind trainer = MemoryKind::kHost;
    MemoryKind worker = MemoryKind::kHost;
    std::optional<int> device;  ///< Not given: rank modulo the number of devices.

    [[nodiscard]] bool any_cuda() const { return trainer == MemoryKind::kCuda || worker == MemoryKind::kCuda; }
    /// Nothing reaches GPU memory over a link when the other side has none.
    [[nodiscard]] bool mixed() const { return trainer != worker; }
};

enum class Role : std::uint8_t { kTrainer, kWorker };

/// For tests: a rank that kills itself when group `group` (its position in the group order) of `version` is published or landed.
struct Death {
    int world_rank = 0;
    std::uint64_t version = 0;
    int group = 0;
};

/// Network devices of the ranks, as UCX names them, with commas between several of one rank.
struct NetDevices {
    std::string all;  ///< Of those that have none of their own; empty: UCX's choice.
    std::map<int, std::string> by_world_rank;

    [[nodiscard]] const std::string& of(int world_rank) const {
        const auto own = by_world_rank.find(world_rank);
        return own != by_world_rank.end() ? own->second : all;
    }
};

/// What `sluice sync` was asked for, checked as far as that goes without model and ranks.
struct SyncOptions {
    ModelChoice model;
    TrainerLayout trainer;
    std::vector<WorkerLayout> workers;
    SourceKind source = SourceKind::kResident;
    RouteOptions route;
    MemoryChoice memory;
    bool gather_by_nccl = false;  ///< Trainers gather by NCCL, not by pulls.
    NetDevices net_devices;
    std::uint64_t versions = 3;
    VerifyMode verify = VerifyMode::kDigest;
    bool fp8_blocks = false;                        ///< --hook fp8-blocks: workers keep their weights in kernel format.
    int layers_in_flight = 0;                       ///< Of workers with hooks.
    std::string dump_directory;                     ///< Empty: no dump.
    std::string json_target;                        ///< Empty: none; "-": stdout.
    std::string trace_target;                       ///< Empty: nothing is traced.
    std::optional<Role> role;                       ///< Not given: the rank decides, trainers first.
    std::vector<std::pair<int, int>> slow_workers;  ///< Worker rank, milliseconds added per chunk.
    std::vector<std::pair<int, int>> slow_owners;   ///< Trainer rank, percent of its speed (1 to 100).
    std::optional<Death> death;

    [[nodiscard]] int trainer_ranks() const { return trainer.world_size(); }
    [[nodiscard]] int worker_ranks() const;
};

/// The options of `sluice sync` as they are given. add_to() a command, parse, then take the result.
class SyncOptionsParser {
public:
    void add_to(CLI::App& command);
    /// Options win over variables: those that both have are written into `settings`, which is checked again.
    [[nodiscard]] Result<SyncOptions> take(Settings& settings) const;

private:
    LayoutOptions layout_;
    std::string versions_ = "3";
    std::string verify_ = "digest";
    std::string dump_, json_, trace_, role_, die_;
    std::string credit_, staging_, slots_, inflight_, timeout_;
    std::string memory_ = "host";
    std::string gather_ = "pull";
    std::string hook_ = "none";
    std::string layers_in_flight_;
    std::string device_;
    bool staged_ = false;
    std::vector<std::string> net_devices_;
    std::vector<std::string> slow_workers_, slow_owners_;
};

}  // namespace sluice::cli

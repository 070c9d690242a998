#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/router.h"
#include "runtime/base/status.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/exchange/group_events.h"
#include "runtime/exchange/pull_engine.h"
#include "runtime/exchange/rank_plan.h"
#include "runtime/exchange/session.h"
#include "runtime/services/buffer.h"
#include "runtime/services/trace.h"
#include "worker/layer_buffers.h"
#include "worker/layer_hook.h"
#include "worker/parameter_store.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace sluice {

/// A worker rank's side of the transfer: its parameters hold version v when sync(v) has returned ok.
///
/// Threads: create, sync and close are called on one thread of the caller's, on which the hooks run too; version() and dirty() may be
/// called from any thread at any time. Lifetimes: session, demand, parameters and catalogue outlive it.
class Worker {
public:
    struct Hooks {
        /// For layers with parameters in layer buffers, in this order. They must outlive the worker.
        std::vector<LayerHook*> layers;
        /// All parameters that the group writes hold the new version, and its layer hooks have ended. Once per group and version, after its last slice,
        /// in the order in which groups complete. An error fails the sync.
        std::function<Status(std::uint64_t version, GroupId group)> on_group;
        /// All groups are here and right; an error keeps the version from being committed anywhere.
        std::function<Status(std::uint64_t version)> before_commit;
    };
    struct Options {
        RouteOptions route;
        bool verify_hashes = true;
        /// The demand may leave parts of parameters unwritten, which then keep what they held. Otherwise one that does is refused (prove_coverage).
        bool partial = false;
        /// Layer buffers, each for the largest layer: that many layers are being pulled or in their hooks at once. At least 1; with
        /// fewer than one more than the trainer's pipeline stages, not all stages send all the time.
        int layers_in_flight = 2;
        std::chrono::milliseconds delay_per_chunk{0};  ///< For tests: a slow worker.
        std::vector<std::pair<int, int>> slow_owners;  ///< For tests: (trainer rank, percent of its speed).
    };

    /// What the last sync did on this rank.
    struct Stats {
        double seconds = 0;
        double pull_seconds = 0;
        double reading_seconds = 0;  ///< With reads or mapped copies in flight on any link.
        double scatter_seconds = 0;
        double hook_seconds = 0;
        double commit_seconds = 0;
        double before_commit_seconds = 0;  ///< Of the hook; not part of `seconds`.
        std::int64_t bytes = 0;
        std::vector<LinkTraffic> links;
    };

    /// Collective over all ranks of the session, like Trainer::create. `demand_key` is equal for workers that share a demand (the same rank of
    /// replicas of a pool). A store that does not hold the demand's parameters is refused by name. `prepared` as there. Layer buffers lie where the store's
    /// blocks do; where it has none, in the memory of the session's device if there is one.
    ///
    /// The session's device, if it has one, is the calling thread's current one afterwards.
    static Result<std::unique_ptr<Worker>> create(Session& session, Bootstrap& bootstrap, const Catalogue& catalogue,
                                                  int worker_rank, int demand_key, const Status& prepared,
                                                  const Demand& demand, const ParameterStore& store, Hooks hooks,
                                                  const Options& options);
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    /// Pulls version `version` (rising from call to call, failed ones counted) into the parameters and returns the verdict, the same on every rank. After a failure the former version is
    /// still the reported one, and dirty() tells whether parameters were written.
    ///
    /// `stream`: a CUDA stream (cudaStream_t; the legacy default stream is cudaStreamLegacy) of the session's device in whose order the version takes its place:
    /// nothing that the engine reads is written before what was launched on it before the call has ended, for which the calling thread waits, and what is launched on
    /// it after a good return starts after the hooks. Null: nothing that reads parameters or kernel-format storage may be running.
    ///
    /// The session's device, if it has one, is the calling thread's current one afterwards.
    Status sync(std::uint64_t version, void* stream = nullptr);

    /// The last committed version; 0 before the first.
    [[nodiscard]] std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
    /// Parameters hold parts of a version that was not committed. The next good sync ends that.
    [[nodiscard]] bool dirty() const { return dirty_.load(std::memory_order_acquire); }

    /// Ends this rank's part; collective when the last sync was good. Called by the destructor if need be. Waits first, for as long as a
    /// sync may take, for the work that hooks have launched on the background stream: it writes the engine's storage. What is later still (an error line
    /// says so) is waited for by the destructor, without a limit, since it reads layer buffers.
    void close();

    [[nodiscard]] const Stats& stats() const { return stats_; }
    [[nodiscard]] const RankPlan& plan() const { return session_.plan(); }
    [[nodiscard]] std::int64_t staging_peak() const { return staging_ ? staging_->peak() : 0; }
    /// All of the layer buffers' memory, and how many layers it holds at once: limits, fixed at set-up.
    [[nodiscard]] std::int64_t layer_buffer_bytes() const { return layers_->bytes(); }
    [[nodiscard]] std::size_t layer_buffers() const { return layers_->count(); }
    /// Chunks of the last version whose checksum was wrong (the first one ends it).
    [[nodiscard]] std::int64_t mismatched_chunks() const;
    /// Transport and class of each link of the route, by trainer rank.
    [[nodiscard]] std::vector<std::pair<int, transport::LinkInfo>> links() const;

private:
    class StartTask;
    class OpenTask;

    Worker(Session& session, Hooks hooks, const Options& options);
    Result<MemoryCard> prepare(const Catalogue& catalogue, const Demand& demand, const ParameterStore& store,
                               const RankPlan& plan);
    Status prepare_layers(const Catalogue& catalogue, const Demand& demand, const ParameterStore& store,
                          const RankPlan& plan);
    Result<std::vector<int>> make_engine(const ParameterStore& store);
    Status start(const ParameterStore& store, Deadline deadline);
    Status take_turn(void* stream, Deadline deadline);
    Status pull(std::uint64_t version, Deadline deadline);
    Status run_hooks(std::uint64_t version, GroupId group, Deadline deadline);
    Status run_layer_hooks(std::uint64_t version, GroupId group, Deadline deadline);
    void pass_buffer_on(GroupId group);
    void trace(TraceEvent event, TraceRecorder::Clock::time_point begin, TraceRecorder::Clock::time_point end);

    Session& session_;
    Hooks hooks_;
    Options options_;
    /// The session's device if the parameters are in its memory.
    Device* device_ = nullptr;
    std::vector<std::unique_ptr<transport::MemoryRegion>> block_regions_;  // null where gets do not reach the memory
    std::optional<LayerBuffers> layers_;
    /// Where layer hooks launch; of the device.
    std::unique_ptr<DeviceStream> background_;
    std::optional<StagingArena> staging_;
    std::unique_ptr<transport::MemoryRegion> staging_region_;
    std::unique_ptr<PullEngine> engine_;
    std::unique_ptr<GroupEvents> landed_;
    std::unique_ptr<StartTask> start_task_;
    std::vector<std::unique_ptr<OpenTask>> open_tasks_;  // by place in layers_->groups()
    std::atomic<std::uint64_t> version_{0};
    std::atomic<bool> dirty_{false};
    Stats stats_;
    std::uint64_t last_tried_ = 0;
    bool failed_ = false;
    bool closed_ = false;
};

}  // namespace sluice

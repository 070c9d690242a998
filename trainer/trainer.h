#pragma once

#include "planner/catalogue.h"
#include "planner/ownership.h"
#include "planner/router.h"
#include "runtime/base/status.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/exchange/group_events.h"
#include "runtime/exchange/rank_plan.h"
#include "runtime/exchange/serve_slots.h"
#include "runtime/exchange/server.h"
#include "runtime/exchange/session.h"
#include "runtime/services/device.h"
#include "runtime/services/shared_memory.h"
#include "runtime/services/trace.h"
#include "trainer/weight_source.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace sluice {

/// A trainer rank's side of the transfer: one call per step.
///
/// Threads: create, sync and close are called on one thread of the caller's, which sync blocks until the version is over everywhere.
/// Lifetimes: session, source and catalogue outlive it. During sync the source's memory must not be written.
class Trainer {
public:
    struct Options {
        RouteOptions route;
        bool verify_hashes = true;  ///< Send checksums; all ranks must agree on it.
        /// Called before each publish, on the thread of sync: version, and the group's place in the order. May be empty.
        std::function<void(std::uint64_t version, int position)> before_publish;
    };

    /// What the last sync did on this rank.
    struct Stats {
        double seconds = 0;
        double gather_seconds = 0;  ///< From the start of the first gather to the end of the last.
        double pack_seconds = 0;
        std::int64_t packed_bytes = 0;
        int peak_groups = 0;  ///< Groups held in gather buffers at once.
    };

    /// Collective over all ranks of the session: plans, registers, connects, and agrees that all are ready. Every rank
    /// returns the same failure. A rank that could not prepare itself takes part all the same, with its error in `prepared` (and
    /// nothing else that counts), so that nobody waits for it.
    ///
    /// The session's device, if it has one, is the calling thread's current one after this and after sync.
    static Result<std::unique_ptr<Trainer>> create(Session& session, Bootstrap& bootstrap, const Catalogue& catalogue,
                                                   int trainer_rank, const Status& prepared, const Ownership& ownership,
                                                   WeightSource* source, const Options& options);
    ~Trainer();
    Trainer(const Trainer&) = delete;
    Trainer& operator=(const Trainer&) = delete;

    /// Serves version `version` (rising from call to call, failed ones counted) to all workers and returns the verdict, the same on every rank:
    /// ok when every worker has committed it. When it returns nobody reads the source's memory any more.
    ///
    /// `ready`: a CUDA event (cudaEvent_t) of the session's device after which the weights are valid; the calling thread waits for it first, and
    /// for nothing else of the device, until the deadline of the version or its failure elsewhere. Null when they are valid already.
    Status sync(std::uint64_t version, void* ready = nullptr);

    /// Ends this rank's part; collective when the last sync was good. Called by the destructor if need be.
    void close();

    [[nodiscard]] const Stats& stats() const { return stats_; }
    [[nodiscard]] const RankPlan& plan() const { return session_.plan(); }
    /// Gather buffers, serve slots, and what the source takes beside them (WeightSource::transit_bytes).
    [[nodiscard]] std::int64_t buffer_bytes() const;

private:
    class OpenTask;
    class PublishTask;

    Trainer(Session& session, WeightSource& source, const Options& options);
    Result<MemoryCard> prepare(const RankPlan& plan);
    Status make_gather_buffers(bool staged);
    Result<std::vector<int>> make_server(const RankPlan& plan);
    Status start(const RankPlan& plan, Deadline deadline);
    Status wait_for_event(void* event, std::uint64_t version, Deadline deadline);
    Status serve(std::uint64_t version, Deadline deadline);
    void stop_serving();
    void trace(TraceEvent event, TraceRecorder::Clock::time_point begin);
    void trace_release_wait(std::uint64_t version, std::size_t released, bool ended,
                            TraceRecorder::Clock::time_point begin);

    Session& session_;
    WeightSource& source_;
    Options options_;
    /// The session's device if the weights are in its memory.
    Device* device_ = nullptr;
    std::vector<std::unique_ptr<transport::MemoryRegion>> segment_regions_;
    std::vector<std::vector<std::byte>> shared_segments_;  // of device memory, when all can be mapped
    /// Memory that groups are gathered into, and how it is mapped.
    struct GatherBuffer {
        std::optional<SharedBuffer> shared;
        std::optional<Buffer> plain;  // on the device, or never mapped
        std::vector<std::byte> shared_device;
        [[nodiscard]] std::span<std::byte> bytes() const { return shared ? shared->buffer().bytes() : plain->bytes(); }
    };
    std::vector<GatherBuffer> gather_buffers_;
    std::vector<std::unique_ptr<transport::MemoryRegion>> gather_regions_;
    std::optional<ServeSlots> slots_;
    std::unique_ptr<Server> server_;
    std::unique_ptr<GroupEvents> released_;
    std::unique_ptr<OpenTask> open_task_;
    std::vector<std::unique_ptr<PublishTask>> publish_tasks_;
    std::vector<int> free_buffers_;
    std::vector<int> buffer_of_group_;  // by GroupId, while it is published
    Stats stats_;
    std::uint64_t last_tried_ = 0;
    bool failed_ = false;
    bool closed_ = false;
};

}  // namespace sluice

#pragma once

#include "runtime/exchange/group_events.h"
#include "runtime/exchange/pull_engine.h"
#include "runtime/exchange/serve_slots.h"
#include "runtime/exchange/server.h"
#include "runtime/services/buffer.h"
#include "runtime/services/collective_group.h"
#include "trainer/collective_gather.h"
#include "trainer/weight_source.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace sluice {

/// Weights that are cut over the trainer's tensor-parallel group: each group's cut tensors are put together on demand, by
/// pulling the peers' shards with the same engine that workers pull with. What a rank stores whole is served in place. The shards are
/// themselves a resident source towards the peers, under the same lease.
///
/// With a CollectiveGroup it gathers by that, until set-up or a version fails: an exchange that was left half-way cannot be taken up again, so that all
/// ranks give the group up, and pull from then on, also in later sessions. They pull too when a trainer has no group.
class GatheredSource : public WeightSource {
public:
    struct Options {
        bool verify_hashes = true;
        std::int64_t staging_bytes = 64 << 20;
        /// Of all trainer ranks, numbered as they are; for shards in GPU memory, on a device that has a lane more than there are copy
        /// threads. Null: pulls. Outlives the source.
        CollectiveGroup* group = nullptr;
    };

    /// `segments` hold the shards as `gather.shards` says; `gathered_bytes` is the buffer that each group needs (Ownership::gathered_bytes).
    GatheredSource(std::vector<Segment> segments, RankInput::Gather gather, std::vector<std::int64_t> gathered_bytes,
                   Options options);
    ~GatheredSource() override;

    [[nodiscard]] std::span<const Segment> segments() const override { return segments_; }
    [[nodiscard]] bool gathers() const override { return true; }
    [[nodiscard]] std::int64_t largest_group_bytes() const override;
    [[nodiscard]] std::int64_t transit_bytes() const override;
    Status gather(std::uint64_t version, GroupId group, std::span<std::byte> buffer, Deadline deadline) override;

    void add_to(RankInput& input) const override;
    Status prepare(Session& session, const RankPlan& plan, std::span<const RemoteRegion> segments,
                   std::span<const transport::MemoryRegion* const> buffers, MemoryCard& card) override;
    [[nodiscard]] std::vector<int> peers(const RankPlan& plan) const override;
    Status start(Session& session) override;
    Status begin(std::uint64_t version) override;
    Status end(Deadline deadline) override;
    void stop() override;
    void decided(bool committed) override;
    void abort(const Status& cause) override;
    void close() override;
    void release() override;

    /// Bytes that the last version pulled from peers.
    [[nodiscard]] std::int64_t bytes_pulled() const { return engine_ ? engine_->bytes_pulled() : 0; }

private:
    class BeginTask;
    class AllowTask;

    Status gather_by_pull(std::uint64_t version, GroupId group, std::span<std::byte> buffer, Deadline deadline);

    std::vector<Segment> segments_;
    RankInput::Gather gather_;
    std::vector<std::int64_t> gathered_bytes_;
    Options options_;
    Session* session_ = nullptr;
    Device* device_ = nullptr;  // the session's, if the shards are in its memory
    std::vector<const transport::MemoryRegion*> buffer_regions_;
    std::optional<ServeSlots> slots_;
    std::optional<StagingArena> staging_;
    std::unique_ptr<transport::MemoryRegion> staging_region_;
    std::unique_ptr<Server> server_;
    std::unique_ptr<PullEngine> engine_;
    std::unique_ptr<GroupEvents> landed_;    // at this rank
    std::unique_ptr<GroupEvents> released_;  // by the peers that pull from this rank
    std::unique_ptr<BeginTask> begin_task_;
    std::unique_ptr<AllowTask> allow_task_;
    std::optional<CollectiveGather> collective_;  // while the group is good
};

}  // namespace sluice

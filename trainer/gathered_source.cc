#include "trainer/gathered_source.h"

#include "runtime/exchange/exchange_memory.h"
#include "runtime/exchange/flow_setup.h"
#include "runtime/services/latch.h"
#include "runtime/services/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice {

/// Starts a version on the loop: the own shards are readable by the peers, and theirs may be asked for.
class GatheredSource::BeginTask : public LoopTask {
public:
    explicit BeginTask(GatheredSource& source) : source_(source) {}
    void run() override {
        const Status& aborted = source_.session_->coordination().abort_cause();
        if (!aborted.ok()) {
            source_.landed_->finish(aborted);
            source_.released_->finish(aborted);
            return;
        }
        source_.server_->open(version);
        for (const GroupId group : source_.server_->group_order()) {
            source_.server_->publish(version, group, 0);
        }
        source_.engine_->start(version);
    }
    std::uint64_t version = 0;

private:
    GatheredSource& source_;
};

/// Lets the engine read one group, into one buffer.
class GatheredSource::AllowTask : public LoopTask {
public:
    explicit AllowTask(GatheredSource& source) : source_(source) {}
    void run() override { source_.engine_->allow(group, destination); }
    GroupId group = 0;
    Destination destination;

private:
    GatheredSource& source_;
};

GatheredSource::GatheredSource(std::vector<Segment> segments, RankInput::Gather gather,
                               std::vector<std::int64_t> gathered_bytes, Options options)
    : segments_(std::move(segments)),
      gather_(std::move(gather)),
      gathered_bytes_(std::move(gathered_bytes)),
      options_(options) {}

GatheredSource::~GatheredSource() = default;

std::int64_t GatheredSource::largest_group_bytes() const {
    return gathered_bytes_.empty() ? 0 : *std::max_element(gathered_bytes_.begin(), gathered_bytes_.end());
}

std::int64_t GatheredSource::transit_bytes() const {
    return (staging_ ? static_cast<std::int64_t>(staging_->bytes().size()) : 0) + (slots_ ? slots_->bytes() : 0) +
           (collective_ ? collective_->bytes() : 0);
}

void GatheredSource::add_to(RankInput& input) const {
    input.gather = gather_;
    if (options_.group != nullptr) {
        input.group = options_.group->failed() ? RankInput::Group::kFailed : RankInput::Group::kGood;
    }
}

Status GatheredSource::prepare(Session& session, const RankPlan& plan, std::span<const RemoteRegion> segments,
                               std::span<const transport::MemoryRegion* const> buffers, MemoryCard& card) {
    session_ = &session;
    // Before there are links: a peer whose set-up fails may call abort() at any time from then on.
    const int groups = static_cast<int>(gathered_bytes_.size());
    landed_ = std::make_unique<GroupEvents>(groups);
    released_ = std::make_unique<GroupEvents>(groups);
    buffer_regions_.assign(buffers.begin(), buffers.end());
    RemoteMemory& shown = card.flows[static_cast<std::size_t>(FlowId::kGather)];
    shown.segments.assign(segments.begin(), segments.end());
    const bool on_device = std::any_of(segments_.begin(), segments_.end(),
                                       [](const Segment& segment) { return segment.kind == MemoryKind::kCuda; });
    device_ = on_device ? session.device() : nullptr;
    if (options_.group != nullptr && (device_ == nullptr || device_->lanes() <= session.settings().copy_threads)) {
        return invalid_argument(
            "a group to gather with was given, and no device that has a lane for it: weights must be in GPU memory, "
            "with one lane more than copy threads");
    }
    SLUICE_ASSIGN_OR_RETURN(slots_, ServeSlots::create(session, plan.gather_owner_route, device_, plan.staged));
    slots_->describe(shown);
    SLUICE_RETURN_IF_ERROR(check_staging(plan.gather_route, options_.staging_bytes));
    SLUICE_ASSIGN_OR_RETURN(Buffer staging, allocate_exchange_memory(options_.staging_bytes, device_, plan.staged));
    staging_.emplace(std::move(staging));
    SLUICE_ASSIGN_OR_RETURN(staging_region_,
                            session.register_memory(staging_->bytes(), staging_->kind(), transport::Access::kLocal));
    return ok_status();
}

std::vector<int> GatheredSource::peers(const RankPlan& plan) const {
    std::vector<int> ranks = world_ranks(served_consumers(*session_, plan.gather_owner_route, plan.trainers));
    for (const Chunk& chunk : plan.gather_route.chunks) {
        const int owner = plan.trainers[static_cast<std::size_t>(chunk.owner)];
        if (std::find(ranks.begin(), ranks.end(), owner) == ranks.end()) {
            ranks.push_back(owner);
        }
    }
    return ranks;
}

Status GatheredSource::start(Session& session) {
    const RankPlan& plan = session.plan();
    ServedMemory memory;
    std::vector<const std::byte*> local;
    for (const Segment& segment : segments_) {
        local.push_back(segment.data);
    }
    memory.segments = local;
    slots_->describe(memory);
    memory.device = device_;
    const int own_world_rank = session.links().rank();
    SLUICE_ASSIGN_OR_RETURN(std::vector<PullOwner> owners,
                            pull_owners(session, plan.gather_route, FlowId::kGather, own_world_rank, local));

    begin_task_ = std::make_unique<BeginTask>(*this);
    allow_task_ = std::make_unique<AllowTask>(*this);
    PullOptions pull;
    pull.inflight_bytes = session.settings().inflight_bytes;
    pull.verify_hashes = options_.verify_hashes;
    pull.timeout = session.settings().sync_timeout;
    pull.trace = session.trace();
    pull.device = device_;
    pull.device_wire = !plan.staged;
    Status opened;
    session.loop().run_and_wait([&] {
        server_ =
            std::make_unique<Server>(session.links(), session.copy_threads(), FlowId::kGather, plan.gather_owner_route,
                                     served_consumers(session, plan.gather_owner_route, plan.trainers),
                                     std::move(memory), options_.verify_hashes,
                                     Server::Events{[this](GroupId group) { released_->group_done(group); },
                                                    [this](const Status& c) { abort(c); }},
                                     session.trace());
        engine_ = std::make_unique<PullEngine>(
            session.loop(), session.links(), session.copy_threads(), FlowId::kGather, plan.gather_route,
            std::move(owners), std::vector<Destination>(gather_.demand.dense.parameters.size()), *staging_,
            *staging_region_, /*gated=*/true, pull,
            PullEngine::Events{[this](GroupId group) { landed_->group_done(group); },
                               [this](const Status& status) { landed_->finish(status); }});
        opened = engine_->open_keys();
    });
    SLUICE_RETURN_IF_ERROR(opened);
    SLUICE_RETURN_IF_ERROR(server_->prepare_device());
    SLUICE_RETURN_IF_ERROR(engine_->prepare_device());
    session.set_flow(FlowId::kGather, server_.get(), engine_.get());
    if (!plan.gathers_by_group) {
        return ok_status();
    }
    SLUICE_ASSIGN_OR_RETURN(
        collective_, CollectiveGather::create(*device_, session.settings().copy_threads, *options_.group,
                                              plan.gather_route, plan.gather_owner_route, local, plan.group_order));
    return ok_status();
}

Status GatheredSource::begin(std::uint64_t version) {
    landed_->reset();
    released_->reset();
    if (collective_) {
        collective_->begin();
        return ok_status();
    }
    begin_task_->version = version;
    session_->loop().post(*begin_task_);
    return ok_status();
}

Status GatheredSource::gather(std::uint64_t version, GroupId group, std::span<std::byte> buffer, Deadline deadline) {
    if (collective_) {
        return collective_->gather(group, buffer.data(), deadline)
            .with_context(fmt::format("version {}: gathering group {}", version, group));
    }
    return gather_by_pull(version, group, buffer, deadline);
}

Status GatheredSource::gather_by_pull(std::uint64_t version, GroupId group, std::span<std::byte> buffer,
                                      Deadline deadline) {
    const bool anything =
        std::any_of(session_->plan().gather_route.chunks.begin(), session_->plan().gather_route.chunks.end(),
                    [group](const Chunk& chunk) { return chunk.group == group; });
    if (!anything) {
        return ok_status();  // all of the group is stored whole
    }
    allow_task_->group = group;
    allow_task_->destination = {buffer.data(), nullptr};
    for (const transport::MemoryRegion* region : buffer_regions_) {
        if (region != nullptr && region->data() == buffer.data()) {
            allow_task_->destination.region = region;
        }
    }
    session_->loop().post(*allow_task_);
    if (!landed_->wait_group(group, deadline)) {
        return deadline_exceeded(fmt::format("version {}: group {} was not gathered in time", version, group));
    }
    return landed_->outcome();
}

Status GatheredSource::end(Deadline deadline) {
    if (collective_) {
        return collective_->finish(deadline).with_context("sending shards of groups that peers gather");
    }
    if (!landed_->wait_over(deadline)) {
        return deadline_exceeded("a group that nobody asked for was not gathered");
    }
    SLUICE_RETURN_IF_ERROR(landed_->outcome());
    std::size_t released = 0;
    while (released < server_->group_order().size()) {
        const GroupEvents::State state = released_->wait(released, deadline);
        if (state.over) {
            return released_->outcome();
        }
        if (state.groups_done == released) {
            return deadline_exceeded("peers did not release the shards in time");
        }
        released = state.groups_done;
    }
    return ok_status();
}

void GatheredSource::stop() {
    if (collective_) {
        return;
    }
    Latch drained(2);
    session_->loop().run_and_wait([&] {
        engine_->stop(Status(StatusCode::kAborted, "the version has failed"), [&] { drained.count_down(); });
        server_->stop([&] { drained.count_down(); });
    });
    drained.wait();
}

void GatheredSource::decided(bool committed) {
    if (!committed && collective_) {
        options_.group->abort();
        collective_.reset();
        log::warning("groups are gathered by pulls from now on: the failed version left the collective half-way");
    }
}

void GatheredSource::abort(const Status& cause) {
    landed_->finish(cause);
    released_->finish(cause);
    if (options_.group != nullptr) {
        options_.group->abort();
    }
}

void GatheredSource::release() {
    if (session_ == nullptr) {
        return;  // set-up did not come as far as this source
    }
    session_->set_flow(FlowId::kGather, nullptr, nullptr);
    collective_.reset();
    server_.reset();
    engine_.reset();
    slots_.reset();
    staging_region_.reset();
    session_ = nullptr;
}

void GatheredSource::close() {
    if (engine_) {
        engine_->close_keys();
    }
}

}  // namespace sluice

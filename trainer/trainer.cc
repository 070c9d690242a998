#include "trainer/trainer.h"

#include "runtime/exchange/flow_setup.h"
#include "runtime/services/latch.h"
#include "runtime/services/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>

namespace sluice {
namespace {

using Clock = EventLoop::Clock;

// How often the caller's event is asked for.
constexpr auto kEventInterval = std::chrono::microseconds(50);

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::vector<StatedMemory> memory_of(const WeightSource& source) {
    std::vector<StatedMemory> memory;
    for (const WeightSource::Segment& segment : source.segments()) {
        if (segment.bytes > 0) {
            memory.push_back({segment.data, segment.kind});
        }
    }
    return memory;
}

/// Whether workers of this host can map the segments: all of them or none. Those in device memory are exported for it.
struct SharedSegments {
    bool all = true;
    std::vector<std::vector<std::byte>> handles;  // of device memory
};
SharedSegments share_segments(const WeightSource& source, Device* device) {
    SharedSegments shared;
    for (const WeightSource::Segment& segment : source.segments()) {
        std::vector<std::byte>& handle = shared.handles.emplace_back();
        if (segment.bytes == 0) {
            continue;
        }
        if (device == nullptr) {
            shared.all = shared.all && segment.shared.has_value();
            continue;
        }
        auto exported = device->share(segment.data);
        if (!exported.ok()) {
            log::info("weights are not mapped: {}", exported.status().message());
            return {false, {}};
        }
        handle = std::move(*exported);
    }
    return shared;
}

// What is planned is read without looking again.
Status check_segments(const WeightSource& source, const Ownership& ownership) {
    const auto segments = source.segments();
    for (std::size_t i = 0; i < ownership.segment_bytes.size(); ++i) {
        const std::int64_t bytes = i < segments.size() ? segments[i].bytes : 0;
        if (bytes < ownership.segment_bytes[i]) {
            return invalid_argument(
                fmt::format("segment {} of the trainer's weights has {} bytes and is said to own {}; give the source "
                            "the memory that its Ownership describes",
                            i, bytes, ownership.segment_bytes[i]));
        }
    }
    const std::int64_t largest = ownership.gathered_bytes.empty() ? 0
                                                                  : *std::max_element(ownership.gathered_bytes.begin(),
                                                                                      ownership.gathered_bytes.end());
    if (source.largest_group_bytes() < largest) {
        return invalid_argument(
            fmt::format("a group of {} bytes is to be gathered into buffers of {}; give the source "
                        "the gathered_bytes of its Ownership",
                        largest, source.largest_group_bytes()));
    }
    return ok_status();
}

}  // namespace

/// Starts a version on the loop.
class Trainer::OpenTask : public LoopTask {
public:
    explicit OpenTask(Trainer& trainer) : trainer_(trainer) {}
    void run() override {
        const Status& aborted = trainer_.session_.coordination().abort_cause();
        if (!aborted.ok()) {
            trainer_.released_->finish(aborted);
            return;
        }
        trainer_.server_->open(version);
    }
    std::uint64_t version = 0;

private:
    Trainer& trainer_;
};

/// Publishes one group on the loop. One per group, so that posting the next never waits for the last to have run.
class Trainer::PublishTask : public LoopTask {
public:
    PublishTask(Trainer& trainer, GroupId published) : trainer_(trainer), group(published) {}
    void run() override { trainer_.server_->publish(version, group, buffer); }

private:
    Trainer& trainer_;

public:
    const GroupId group;
    std::uint64_t version = 0;
    int buffer = 0;
};

Result<std::unique_ptr<Trainer>> Trainer::create(Session& session, Bootstrap& bootstrap, const Catalogue& catalogue,
                                                 int trainer_rank, const Status& prepared, const Ownership& ownership,
                                                 WeightSource* source, const Options& options) {
    const Deadline deadline = Deadline::after(session.settings().connect_timeout);
    RankInput input;
    input.trainer = true;
    input.own_rank = trainer_rank;
    input.status = prepared;
    input.ownership = ownership;
    SharedSegments shared;
    if (prepared.ok()) {
        source->add_to(input);
        const Result<bool> on_device = device_memory(session, memory_of(*source));
        input.status = on_device.ok() ? check_segments(*source, ownership) : on_device.status();
        input.device_memory = on_device.ok() && *on_device;
        input.staged = input.device_memory && (session.settings().staged || !exportable(session, memory_of(*source)));
        shared = share_segments(*source, input.device_memory ? session.device() : nullptr);
        if (shared.all) {
            input.mappable_on = mappable_identity(session, input.device_memory);
        }
    }
    SLUICE_ASSIGN_OR_RETURN(const RankPlan plan,
                            compile_rank_plan(bootstrap, catalogue, input, options.route, deadline));

    std::unique_ptr<Trainer> trainer(new Trainer(session, *source, options));
    trainer->device_ = input.device_memory ? session.device() : nullptr;
    trainer->shared_segments_ = std::move(shared.handles);
    const Result<MemoryCard> card = trainer->prepare(plan);
    SLUICE_RETURN_IF_ERROR(session.exchange_cards(bootstrap, plan, card, deadline));
    const Status started = trainer->start(plan, deadline);
    if (Status agreed = session.end_set_up(bootstrap, started, deadline); !agreed.ok()) {
        trainer->failed_ = true;
        return agreed;
    }
    return trainer;
}

Trainer::Trainer(Session& session, WeightSource& source, const Options& options)
    : session_(session), source_(source), options_(options) {}

Trainer::~Trainer() { close(); }

// Credit groups that are published and unreleased, and the one being gathered.
Status Trainer::make_gather_buffers(bool staged) {
    const std::int64_t bytes = source_.largest_group_bytes();
    for (int i = 0; i <= session_.settings().credit; ++i) {
        GatherBuffer& buffer = gather_buffers_.emplace_back();
        if (device_ != nullptr) {
            SLUICE_ASSIGN_OR_RETURN(buffer.plain, device_->allocate(bytes));
            if (bytes > 0 && !staged) {
                SLUICE_ASSIGN_OR_RETURN(buffer.shared_device, device_->share(buffer.plain->data()));
            }
        } else if (session_.settings().mapped) {
            SLUICE_ASSIGN_OR_RETURN(buffer.shared, SharedBuffer::allocate(bytes));
        } else {
            SLUICE_ASSIGN_OR_RETURN(buffer.plain, Buffer::allocate(bytes, MemoryKind::kHost));
        }
        free_buffers_.push_back(i);
    }
    return ok_status();
}

Result<MemoryCard> Trainer::prepare(const RankPlan& plan) {
    MemoryCard card;
    RemoteMemory& shown = card.flows[static_cast<std::size_t>(FlowId::kSync)];
    // Where everything is staged, nobody reads device memory over a link, and no transport needs to know it.
    const bool in_reach = device_ == nullptr || !plan.staged;
    const auto show = [&](std::span<std::byte> memory, std::optional<SharedMemoryHandle> shared,
                          std::vector<std::byte> shared_device, auto& regions) -> Result<RemoteRegion> {
        regions.emplace_back();
        if (!in_reach) {
            return RemoteRegion{reinterpret_cast<std::uint64_t>(memory.data()), memory.size(), {}, {}, {}};
        }
        SLUICE_ASSIGN_OR_RETURN(
            regions.back(), session_.register_memory(memory, device_ != nullptr ? MemoryKind::kCuda : MemoryKind::kHost,
                                                     transport::Access::kRemoteRead));
        return remote_region(*regions.back(), shared, std::move(shared_device));
    };
    const auto segments = source_.segments();
    for (std::size_t i = 0; i < segments.size(); ++i) {
        const WeightSource::Segment& segment = segments[i];
        SLUICE_ASSIGN_OR_RETURN(
            RemoteRegion region,
            show({segment.data, static_cast<std::size_t>(segment.bytes)}, segment.shared,
                 i < shared_segments_.size() ? shared_segments_[i] : std::vector<std::byte>{}, segment_regions_));
        shown.segments.push_back(std::move(region));
    }
    std::vector<const transport::MemoryRegion*> buffer_regions;
    if (source_.gathers()) {
        SLUICE_RETURN_IF_ERROR(make_gather_buffers(plan.staged));
        for (const GatherBuffer& buffer : gather_buffers_) {
            SLUICE_ASSIGN_OR_RETURN(
                RemoteRegion region,
                show(buffer.bytes(), buffer.shared ? std::optional(buffer.shared->handle()) : std::nullopt,
                     buffer.shared_device, gather_regions_));
            shown.gather_buffers.push_back(std::move(region));
            buffer_regions.push_back(gather_regions_.back().get());
        }
    }
    SLUICE_ASSIGN_OR_RETURN(slots_, ServeSlots::create(session_, plan.owner_route, device_, plan.staged));
    slots_->describe(shown);
    SLUICE_RETURN_IF_ERROR(source_.prepare(session_, plan, shown.segments, buffer_regions, card));
    return card;
}

// Gives the world ranks of those that it serves or gathers from.
Result<std::vector<int>> Trainer::make_server(const RankPlan& plan) {
    ServedMemory memory;
    for (const WeightSource::Segment& segment : source_.segments()) {
        memory.segments.push_back(segment.data);
    }
    for (const GatherBuffer& buffer : gather_buffers_) {
        memory.gather_buffers.push_back(buffer.bytes().data());
    }
    slots_->describe(memory);
    memory.device = device_;
    GroupId groups = 0;
    for (const GroupId group : plan.owner_route.group_order) {
        publish_tasks_.push_back(std::make_unique<PublishTask>(*this, group));
        groups = std::max(groups, group + 1);
    }
    buffer_of_group_.assign(static_cast<std::size_t>(groups), 0);
    released_ = std::make_unique<GroupEvents>(groups);
    open_task_ = std::make_unique<OpenTask>(*this);
    auto consumers = served_consumers(session_, plan.owner_route, plan.workers);
    std::vector<int> peers = source_.peers(plan);
    const std::vector<int> consumer_ranks = world_ranks(consumers);
    peers.insert(peers.end(), consumer_ranks.begin(), consumer_ranks.end());
    session_.loop().run_and_wait([&] {
        server_ = std::make_unique<Server>(session_.links(), session_.copy_threads(), FlowId::kSync, plan.owner_route,
                                           std::move(consumers), std::move(memory), options_.verify_hashes,
                                           Server::Events{[this](GroupId group) { released_->group_done(group); },
                                                          [this](const Status& cause) { released_->finish(cause); }},
                                           session_.trace());
    });
    SLUICE_RETURN_IF_ERROR(server_->prepare_device());
    return peers;
}

Status Trainer::start(const RankPlan& plan, Deadline deadline) {
    const Result<std::vector<int>> peers = make_server(plan);
    session_.set_flow(FlowId::kSync, server_.get(), nullptr);
    session_.set_abort_handler([this](const Status& cause) {
        const Status aborted(StatusCode::kAborted, cause.message());
        released_->finish(aborted);
        source_.abort(aborted);
    });
    SLUICE_RETURN_IF_ERROR(session_.connect(peers, deadline));
    return source_.start(session_);
}

Status Trainer::sync(std::uint64_t version, void* ready) {
    if (closed_) {
        return invalid_argument("this trainer is closed");
    }
    if (ready != nullptr && session_.device() == nullptr) {
        return invalid_argument("a CUDA event was given to a trainer whose session has no device");
    }
    if (version <= last_tried_) {
        return invalid_argument(
            fmt::format("version {} is not above version {}, the last one tried; give every sync a higher number",
                        version, last_tried_));
    }
    last_tried_ = version;
    const Clock::time_point begin = Clock::now();
    const Deadline deadline = Deadline::after(session_.settings().sync_timeout);
    stats_ = {};
    released_->reset();
    open_task_->version = version;
    session_.loop().post(*open_task_);

    Status status = ready != nullptr ? wait_for_event(ready, version, deadline) : ok_status();
    if (status.ok()) {
        status = source_.begin(version);
    }
    if (status.ok()) {
        status = serve(version, deadline);
    }
    if (status.ok()) {
        // Nobody may read the memory of a version that is over: the source waits for its peers too.
        const Clock::time_point served = Clock::now();
        status = source_.end(deadline);
        if (source_.gathers()) {
            trace({.name = TraceName::kLeaseWait, .version = version}, served);
        }
    }
    if (!status.ok()) {
        stop_serving();
    }
    stats_.packed_bytes = server_->packed_bytes();
    stats_.pack_seconds = server_->pack_seconds();
    stats_.seconds = seconds_since(begin);
    const Clock::time_point commit_begin = Clock::now();
    const auto verdict = session_.coordination().agree(fmt::format("version {}", version), status, deadline);
    trace({.name = TraceName::kCommit, .version = version}, commit_begin);
    trace({.name = TraceName::kVersion, .version = version}, begin);
    failed_ = !verdict.status.ok();
    if (failed_ && status.ok()) {
        stop_serving();  // jobs for a rank that was lost may still run
    }
    source_.decided(!failed_);
    return verdict.status;
}

// A span of the caller's lane that ends now.
void Trainer::trace(TraceEvent event, Clock::time_point begin) {
    if (TraceRecorder* recorder = session_.trace()) {
        event.lane = TraceRecorder::kCallerLane;
        recorder->span(event, begin, Clock::now());
    }
}

// Who kept this rank waiting for a release: the last to release the group that ended the wait, or whoever has not released the oldest.
void Trainer::trace_release_wait(std::uint64_t version, std::size_t released, bool ended, Clock::time_point begin) {
    if (session_.trace() == nullptr) {
        return;
    }
    const GroupId group = ended ? released_->order_of(released) : server_->group_order()[released];
    int peer = -1;
    if (ended) {
        peer = server_->last_to_release(group);
    } else {
        session_.loop().run_and_wait([&] { peer = server_->last_to_release(group); });
    }
    trace({.name = TraceName::kReleaseWait, .version = version, .group = group, .peer = peer}, begin);
}

Status Trainer::wait_for_event(void* event, std::uint64_t version, Deadline deadline) {
    while (true) {
        SLUICE_ASSIGN_OR_RETURN(const bool reached, session_.device()->event_reached(event));
        if (reached) {
            return ok_status();
        }
        if (deadline.passed()) {
            return deadline_exceeded(
                fmt::format("version {}: the CUDA event that was given to sync was not reached in time; look for what "
                            "keeps its stream, or raise SLUICE_SYNC_TIMEOUT",
                            version));
        }
        if (released_->wait_over(Deadline::after(kEventInterval))) {
            return released_->outcome();
        }
    }
}

Status Trainer::serve(std::uint64_t version, Deadline deadline) {
    const bool gathers = source_.gathers();
    const auto credit = static_cast<std::size_t>(session_.settings().credit);
    std::size_t published = 0;
    std::size_t released = 0;
    std::optional<Clock::time_point> first_gather;

    // Takes note of releases: their buffers are free again.
    const auto reclaim = [&](std::size_t now_released) {
        for (; released < now_released; ++released) {
            if (gathers) {
                free_buffers_.push_back(buffer_of_group_[static_cast<std::size_t>(released_->order_of(released))]);
            }
        }
    };
    if (gathers) {
        free_buffers_.clear();
        for (int i = static_cast<int>(gather_buffers_.size()); i-- > 0;) {
            free_buffers_.push_back(i);
        }
    }
    // Waits until at most `most` published groups are unreleased.
    const auto wait_for_releases = [&](std::size_t most) -> Status {
        while (published - released > most) {
            const Clock::time_point wait_begin = Clock::now();
            const GroupEvents::State state = released_->wait(released, deadline);
            trace_release_wait(version, released, state.groups_done > released, wait_begin);
            reclaim(state.groups_done);
            if (state.over) {
                return released_->outcome();
            }
            if (published - released > most && deadline.passed()) {
                std::string whom;
                const GroupId oldest = server_->group_order()[released];
                session_.loop().run_and_wait([&] { whom = server_->waiting_for(oldest); });
                return deadline_exceeded(
                    fmt::format("version {}: group {} was not released in time by {}", version, oldest, whom));
            }
        }
        return ok_status();
    };

    for (auto& task : publish_tasks_) {
        if (gathers) {
            SLUICE_RETURN_IF_ERROR(wait_for_releases(credit));
            const int buffer = free_buffers_.back();
            free_buffers_.pop_back();
            stats_.peak_groups = std::max(stats_.peak_groups, static_cast<int>(published - released) + 1);
            buffer_of_group_[static_cast<std::size_t>(task->group)] = buffer;
            task->buffer = buffer;
            const Clock::time_point gather_begin = Clock::now();
            if (!first_gather) {
                first_gather = gather_begin;
            }
            SLUICE_RETURN_IF_ERROR(source_.gather(version, task->group,
                                                  gather_buffers_[static_cast<std::size_t>(buffer)].bytes(), deadline));
            stats_.gather_seconds = seconds_since(*first_gather);
            trace({.name = TraceName::kGather, .version = version, .group = task->group}, gather_begin);
        }
        if (options_.before_publish) {
            options_.before_publish(version, static_cast<int>(published));
        }
        task->version = version;
        session_.loop().post(*task);
        ++published;
    }
    return wait_for_releases(0);
}

// A failed version: waits until nothing of it is in flight, and the copy threads read nothing of it any more.
void Trainer::stop_serving() {
    source_.stop();
    Latch drained(1);
    session_.loop().run_and_wait([&] { server_->stop([&] { drained.count_down(); }); });
    drained.wait();
}

void Trainer::close() {
    if (std::exchange(closed_, true)) {
        return;
    }
    session_.close(/*graceful=*/!failed_, [this] { source_.close(); });
    session_.set_flow(FlowId::kSync, nullptr, nullptr);
    session_.set_abort_handler(nullptr);
    session_.loop().run_and_wait([this] {
        source_.release();
        server_.reset();
        segment_regions_.clear();
        gather_regions_.clear();
        slots_.reset();
    });
}

std::int64_t Trainer::buffer_bytes() const {
    std::int64_t bytes = source_.transit_bytes() + (slots_ ? slots_->bytes() : 0);
    for (const GatherBuffer& buffer : gather_buffers_) {
        bytes += static_cast<std::int64_t>(buffer.bytes().size());
    }
    return bytes;
}

}  // namespace sluice

#include "worker/worker.h"

#include "planner/coverage.h"
#include "runtime/exchange/exchange_memory.h"
#include "runtime/exchange/flow_setup.h"
#include "runtime/services/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

using Clock = EventLoop::Clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
}

Status check_store(const Demand& demand, const ParameterStore& store) {
    if (store.places.size() != demand.parameters.size()) {
        return invalid_argument(fmt::format("the parameter store has {} parameters, the loader wrote {}",
                                            store.places.size(), demand.parameters.size()));
    }
    for (std::size_t i = 0; i < store.places.size(); ++i) {
        const ParameterStore::Place& place = store.places[i];
        const Parameter& parameter = demand.parameters[i];
        if (store.buffered(static_cast<ParameterId>(i))) {
            continue;
        }
        const bool block_exists = place.block >= 0 && static_cast<std::size_t>(place.block) < store.blocks.size();
        if (!block_exists || place.offset < 0 ||
            place.offset > store.blocks[static_cast<std::size_t>(place.block)].bytes - parameter.bytes()) {
            return invalid_argument(fmt::format("parameter {} ({} bytes) does not lie within its block", parameter.name,
                                                parameter.bytes()));
        }
        if (store.blocks[static_cast<std::size_t>(place.block)].data == nullptr && parameter.bytes() > 0) {
            return invalid_argument(fmt::format("parameter {} has no memory; bind it before the sync", parameter.name));
        }
    }
    return ok_status();
}

// The first parameter that lands in a layer buffer; null when there is none.
const Parameter* first_buffered(const Demand& demand, const ParameterStore& store) {
    const auto at = std::find_if(store.places.begin(), store.places.end(), [](const ParameterStore::Place& place) {
        return place.block == ParameterStore::kLayerBuffer;
    });
    return at == store.places.end() ? nullptr : &demand.parameters[static_cast<std::size_t>(at - store.places.begin())];
}

Status check_hooks(const Demand& demand, const ParameterStore& store, const Worker::Hooks& hooks) {
    const Parameter* buffered = first_buffered(demand, store);
    return buffered == nullptr || !hooks.layers.empty()
               ? ok_status()
               : invalid_argument(fmt::format(
                     "parameter {} lands in a layer buffer and there is no layer hook to take it from there; give one, "
                     "or a place of its own",
                     buffered->name));
}

std::vector<StatedMemory> memory_of(const ParameterStore& store) {
    std::vector<StatedMemory> memory;
    for (const ParameterStore::Block& block : store.blocks) {
        if (block.bytes > 0) {
            memory.push_back({block.data, block.kind});
        }
    }
    return memory;
}

// A store whose parameters are all buffered says nothing of the kind of memory.
Result<bool> on_device(const Session& session, const Demand& demand, const ParameterStore& store) {
    const std::vector<StatedMemory> memory = memory_of(store);
    if (memory.empty() && first_buffered(demand, store) != nullptr) {
        return session.device() != nullptr;
    }
    return device_memory(session, memory);
}

}  // namespace

/// Starts a version on the loop.
class Worker::StartTask : public LoopTask {
public:
    explicit StartTask(Worker& worker) : worker_(worker) {}
    void run() override {
        const Status& aborted = worker_.session_.coordination().abort_cause();
        if (!aborted.ok()) {
            worker_.landed_->finish(aborted);
            return;
        }
        worker_.engine_->start(version);
        for (std::size_t place = 0; place < worker_.layers_->count(); ++place) {
            worker_.engine_->open(worker_.layers_->groups()[place]);
        }
    }
    std::uint64_t version = 0;

private:
    Worker& worker_;
};

/// Lets a group be pulled into its layer buffer, which has come free.
class Worker::OpenTask : public LoopTask {
public:
    OpenTask(Worker& worker, GroupId group) : worker_(worker), group_(group) {}
    void run() override { worker_.engine_->open(group_); }

private:
    Worker& worker_;
    GroupId group_;
};

Result<std::unique_ptr<Worker>> Worker::create(Session& session, Bootstrap& bootstrap, const Catalogue& catalogue,
                                               int worker_rank, int demand_key, const Status& prepared,
                                               const Demand& demand, const ParameterStore& store, Hooks hooks,
                                               const Options& options) {
    const Deadline deadline = Deadline::after(session.settings().connect_timeout);
    RankInput input;
    input.own_rank = worker_rank;
    input.demand_key = demand_key;
    input.demand = demand;
    input.status = prepared.ok() ? check_store(demand, store) : prepared;
    if (input.status.ok() && !options.partial) {
        input.status = prove_coverage(demand).status;
    }
    if (input.status.ok()) {
        input.status = check_hooks(demand, store, hooks);
    }
    const Result<bool> device = on_device(session, demand, store);
    if (input.status.ok() && !device.ok()) {
        input.status = device.status();
    }
    input.device_memory = device.ok() && *device;
    input.staged = input.device_memory && (session.settings().staged || !exportable(session, memory_of(store)));
    input.mappable_on = mappable_identity(session, input.device_memory);
    SLUICE_ASSIGN_OR_RETURN(const RankPlan plan,
                            compile_rank_plan(bootstrap, catalogue, input, options.route, deadline));

    std::unique_ptr<Worker> worker(new Worker(session, std::move(hooks), options));
    worker->device_ = input.device_memory ? session.device() : nullptr;
    const Result<MemoryCard> card = worker->prepare(catalogue, demand, store, plan);
    SLUICE_RETURN_IF_ERROR(session.exchange_cards(bootstrap, plan, card, deadline));
    const Status started = worker->start(store, deadline);
    if (Status agreed = session.end_set_up(bootstrap, started, deadline); !agreed.ok()) {
        worker->failed_ = true;
        return agreed;
    }
    return worker;
}

Worker::Worker(Session& session, Hooks hooks, const Options& options)
    : session_(session), hooks_(std::move(hooks)), options_(options) {}

Worker::~Worker() { close(); }

Result<MemoryCard> Worker::prepare(const Catalogue& catalogue, const Demand& demand, const ParameterStore& store,
                                   const RankPlan& plan) {
    const bool staged = plan.staged;
    for (const ParameterStore::Block& block : store.blocks) {
        if (device_ != nullptr && staged) {
            block_regions_.push_back(nullptr);
            continue;
        }
        SLUICE_ASSIGN_OR_RETURN(
            auto region, session_.register_memory({block.data, static_cast<std::size_t>(block.bytes)}, block.kind,
                                                  transport::Access::kLocal));
        block_regions_.push_back(std::move(region));
    }
    SLUICE_RETURN_IF_ERROR(check_staging(plan.route, session_.settings().staging_bytes));
    SLUICE_ASSIGN_OR_RETURN(Buffer staging,
                            allocate_exchange_memory(session_.settings().staging_bytes, device_, staged));
    staging_.emplace(std::move(staging));
    SLUICE_ASSIGN_OR_RETURN(staging_region_,
                            session_.register_memory(staging_->bytes(), staging_->kind(), transport::Access::kLocal));
    SLUICE_RETURN_IF_ERROR(prepare_layers(catalogue, demand, store, plan));
    return MemoryCard{};
}

Status Worker::prepare_layers(const Catalogue& catalogue, const Demand& demand, const ParameterStore& store,
                              const RankPlan& plan) {
    SLUICE_ASSIGN_OR_RETURN(
        layers_, LayerBuffers::create(catalogue, demand, plan.route, store, options_.layers_in_flight, device_));
    if (device_ == nullptr || !plan.staged) {
        SLUICE_RETURN_IF_ERROR(layers_->register_memory(session_));
    }
    if (device_ != nullptr) {
        SLUICE_ASSIGN_OR_RETURN(background_, device_->make_stream());
    }
    for (LayerHook* hook : hooks_.layers) {
        SLUICE_RETURN_IF_ERROR(hook->prepare(layers_->addresses(), device_).with_context("layer hook"));
    }
    for (const GroupId group : layers_->groups()) {
        open_tasks_.push_back(std::make_unique<OpenTask>(*this, group));
    }
    return ok_status();
}

// Gives the world ranks of the owners.
Result<std::vector<int>> Worker::make_engine(const ParameterStore& store) {
    const RankPlan& plan = session_.plan();
    SLUICE_ASSIGN_OR_RETURN(std::vector<PullOwner> owners,
                            pull_owners(session_, plan.route, FlowId::kSync, session_.links().rank(), {}));
    for (const auto& [trainer, percent] : options_.slow_owners) {
        for (PullOwner& owner : owners) {
            owner.speed_percent = owner.trainer_rank == trainer ? percent : owner.speed_percent;
        }
    }
    std::vector<Destination> destinations;
    for (std::size_t i = 0; i < store.places.size(); ++i) {
        const ParameterStore::Place& place = store.places[i];
        if (place.block == ParameterStore::kLayerBuffer) {
            destinations.push_back(layers_->destination(static_cast<ParameterId>(i)));
            continue;
        }
        destinations.push_back({store.blocks[static_cast<std::size_t>(place.block)].data + place.offset,
                                block_regions_[static_cast<std::size_t>(place.block)].get()});
    }
    GroupId groups = 0;
    for (const Chunk& chunk : plan.route.chunks) {
        groups = std::max(groups, chunk.group + 1);
    }
    landed_ = std::make_unique<GroupEvents>(groups);
    start_task_ = std::make_unique<StartTask>(*this);
    PullOptions pull;
    pull.inflight_bytes = session_.settings().inflight_bytes;
    pull.verify_hashes = options_.verify_hashes;
    pull.timeout = session_.settings().sync_timeout;
    pull.delay_per_chunk = options_.delay_per_chunk;
    pull.trace = session_.trace();
    pull.closed_groups = layers_->groups();
    pull.device = device_;
    pull.device_wire = !plan.staged;
    std::vector<int> peers = world_ranks(owners);
    session_.loop().run_and_wait([&] {
        engine_ = std::make_unique<PullEngine>(
            session_.loop(), session_.links(), session_.copy_threads(), FlowId::kSync, plan.route, std::move(owners),
            std::move(destinations), *staging_, *staging_region_, /*gated=*/false, pull,
            PullEngine::Events{[this](GroupId group) { landed_->group_done(group); },
                               [this](const Status& status) { landed_->finish(status); }});
    });
    SLUICE_RETURN_IF_ERROR(engine_->prepare_device());
    return peers;
}

Status Worker::start(const ParameterStore& store, Deadline deadline) {
    const Result<std::vector<int>> peers = make_engine(store);
    session_.set_flow(FlowId::kSync, nullptr, engine_.get());
    SLUICE_RETURN_IF_ERROR(session_.connect(peers, deadline));
    Status opened;
    session_.loop().run_and_wait([&] { opened = engine_->open_keys(); });
    return opened;
}

Status Worker::sync(std::uint64_t version, void* stream) {
    if (closed_) {
        return invalid_argument("this worker is closed");
    }
    if (stream != nullptr && background_ == nullptr) {
        return invalid_argument("a CUDA stream was given to a worker whose parameters are not in GPU memory");
    }
    if (version <= last_tried_) {
        return invalid_argument(
            fmt::format("version {} is not above version {}, the last one tried; give every sync a higher number",
                        version, last_tried_));
    }
    last_tried_ = version;
    const Clock::time_point begin = Clock::now();
    const Deadline deadline = Deadline::after(session_.settings().sync_timeout);
    stats_ = {.links = std::move(stats_.links)};  // its memory is used again

    Status status = take_turn(stream, deadline);
    if (status.ok()) {
        landed_->reset();
        start_task_->version = version;
        dirty_.store(true, std::memory_order_release);
        session_.loop().post(*start_task_);
        status = pull(version, deadline);
    }
    if (status.ok() && stream != nullptr) {
        status = background_->precede(stream);
    }
    const Clock::time_point landed = Clock::now();
    if (status.ok() && hooks_.before_commit) {
        status = hooks_.before_commit(version);
    }
    const Clock::time_point commit_begin = Clock::now();
    stats_.before_commit_seconds = seconds_between(landed, commit_begin);
    const auto verdict = session_.coordination().agree(fmt::format("version {}", version), status, deadline);
    failed_ = !verdict.status.ok();
    if (verdict.status.ok()) {
        version_.store(version, std::memory_order_release);
        dirty_.store(false, std::memory_order_release);
    }
    const Clock::time_point end = Clock::now();
    if (hooks_.before_commit) {
        trace({.name = TraceName::kBeforeCommit, .version = version}, landed, commit_begin);
    }
    trace({.name = TraceName::kCommit, .version = version}, commit_begin, end);
    trace({.name = TraceName::kVersion, .version = version}, begin, end);
    stats_.commit_seconds = seconds_between(commit_begin, end);
    stats_.seconds = seconds_between(begin, end) - stats_.before_commit_seconds;
    stats_.pull_seconds = engine_->pull_span().seconds();
    stats_.reading_seconds = engine_->reading_seconds();
    stats_.scatter_seconds = engine_->scatter_span().seconds();
    stats_.bytes = engine_->bytes_pulled();
    engine_->traffic(stats_.links);
    return verdict.status;
}

// A span of the caller's lane.
void Worker::trace(TraceEvent event, Clock::time_point begin, Clock::time_point end) {
    if (TraceRecorder* recorder = session_.trace()) {
        event.lane = TraceRecorder::kCallerLane;
        recorder->span(event, begin, end);
    }
}

// Waits for what must not see the new version any more, and for hooks that a deadline has left running.
Status Worker::take_turn(void* stream, Deadline deadline) {
    if (stream != nullptr) {
        SLUICE_RETURN_IF_ERROR(background_->follow(stream));
    }
    return background_ ? background_->wait(deadline) : ok_status();
}

// Of a group that has landed. Whatever was started has ended when it returns; only what a device still does at the deadline is left to take_turn().
Status Worker::run_hooks(std::uint64_t version, GroupId group, Deadline deadline) {
    SLUICE_RETURN_IF_ERROR(run_layer_hooks(version, group, deadline));
    return hooks_.on_group ? hooks_.on_group(version, group) : ok_status();
}

Status Worker::run_layer_hooks(std::uint64_t version, GroupId group, Deadline deadline) {
    const std::optional<std::size_t> place = layers_->place_of(group);
    if (!place) {
        return ok_status();
    }
    Status status;
    for (auto hook = hooks_.layers.begin(); hook != hooks_.layers.end() && status.ok(); ++hook) {
        status = (*hook)->run({version, group, layers_->parameters_of(*place), background_.get()});
    }
    if (background_) {
        const Status ended = background_->wait(deadline);
        status = status.ok() ? ended : status;
    }
    return status;
}

// Gives a group's buffer, if it had one, to the next group that is to have it.
void Worker::pass_buffer_on(GroupId group) {
    const std::optional<std::size_t> place = layers_->place_of(group);
    if (place && *place + layers_->count() < open_tasks_.size()) {
        session_.loop().post(*open_tasks_[*place + layers_->count()]);
    }
}

// Runs the hooks as groups land; returns when nothing of the version is in flight any more.
Status Worker::pull(std::uint64_t version, Deadline deadline) {
    Status hook_status;
    std::size_t seen = 0;
    std::optional<Clock::time_point> first_hook;
    while (true) {
        const GroupEvents::State state = landed_->wait(seen, deadline);
        if (state.groups_done == seen && !state.over) {
            session_.loop().run_and_wait(
                [&] { engine_->fail(deadline_exceeded(fmt::format("version {} did not land in time", version))); });
            landed_->wait_over(Deadline::never());
            continue;  // what had landed already may have been all of it
        }
        for (; seen < state.groups_done; ++seen) {
            if ((!hooks_.on_group && layers_->count() == 0) || !hook_status.ok() ||
                (state.over && !landed_->outcome().ok())) {
                continue;
            }
            const Clock::time_point hook_begin = Clock::now();
            first_hook = first_hook.value_or(hook_begin);
            const GroupId group = landed_->order_of(seen);
            hook_status = run_hooks(version, group, deadline);
            const Clock::time_point hook_end = Clock::now();
            stats_.hook_seconds = seconds_between(*first_hook, hook_end);
            trace({.name = TraceName::kHook, .version = version, .group = group}, hook_begin, hook_end);
            if (hook_status.ok()) {
                pass_buffer_on(group);
            } else {
                hook_status = hook_status.with_context(fmt::format("hook of group {}", group));
                session_.loop().run_and_wait([&] { engine_->fail(hook_status); });
            }
        }
        if (state.over) {
            break;
        }
    }
    return hook_status.ok() ? landed_->outcome() : hook_status;
}

void Worker::close() {
    if (std::exchange(closed_, true)) {
        return;
    }
    if (background_) {
        if (const Status ended = background_->wait(Deadline::after(session_.settings().sync_timeout)); !ended.ok()) {
            log::error("closing, while hooks may still run on the device: {}", ended.message());
        }
    }
    session_.close(/*graceful=*/!failed_, [this] {
        if (engine_) {
            engine_->close_keys();
        }
    });
    session_.set_flow(FlowId::kSync, nullptr, nullptr);
    session_.loop().run_and_wait([this] {
        engine_.reset();
        block_regions_.clear();
        if (layers_) {
            layers_->deregister();
        }
        staging_region_.reset();
    });
}

std::int64_t Worker::mismatched_chunks() const { return engine_->mismatched_chunks(); }

std::vector<std::pair<int, transport::LinkInfo>> Worker::links() const {
    std::vector<std::pair<int, transport::LinkInfo>> out;
    session_.loop().run_and_wait([&] {
        std::vector<LinkTraffic> traffic;
        engine_->traffic(traffic);
        for (const LinkTraffic& link : traffic) {
            if (const transport::Endpoint* endpoint =
                    session_.links().endpoint(session_.plan().trainers[static_cast<std::size_t>(link.trainer_rank)])) {
                out.emplace_back(link.trainer_rank, endpoint->link());
            }
        }
    });
    return out;
}

}  // namespace sluice

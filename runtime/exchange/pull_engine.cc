#include "runtime/exchange/pull_engine.h"

#include "runtime/exchange/pull_engine_parts.h"
#include "runtime/services/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace sluice {
namespace {

using Clock = EventLoop::Clock;

constexpr int kGetNodes = 256;
// One turn of an owner: enough small gets to make the turn worth its bookkeeping, little enough to keep turns fair.
constexpr std::int64_t kTurnBytes = 1 << 20;
constexpr int kTurnGets = 32;
// What is in flight from an owner before its speed is known, at least, and in time.
constexpr std::int64_t kFirstWindow = 512 << 10;
constexpr std::int64_t kLeastWindow = 256 << 10;
// It is worked out again after so many bytes, not for every small get.
constexpr std::int64_t kWindowStep = 64 << 10;
constexpr double kSecondsAhead = 0.25;
// Of the gets and of a window, how much must be free before the next are posted: some at a time, since over an emulated link
// a single one wakes the owner just as they do.
constexpr int kPostedAtOnce = 8;
constexpr auto kWatchInterval = std::chrono::milliseconds(250);
// When no read ends for so long although the sync has failed, those in flight are ended by closing their endpoints by force.
constexpr auto kDrainLimit = std::chrono::seconds(1);
// A get over cuda_ipc costs some 7 us of CPU, in which a GPU copies this much.
constexpr std::int64_t kBytesWorthAGetOnDevice = 8 << 20;

LandingRules landing_rules(const PullOptions& options) {
    LandingRules rules;
    if (options.device != nullptr) {
        rules.bytes_worth_a_get = rules.bytes_worth_a_get_of_slot = kBytesWorthAGetOnDevice;
        rules.in_place = options.device_wire;
    }
    return rules;
}

}  // namespace

void PullEngine::Span::extend(Clock::time_point from, Clock::time_point to) {
    if (begin == end) {
        begin = from;
        end = to;
    } else {
        begin = std::min(begin, from);
        end = std::max(end, to);
    }
}

PullEngine::PullEngine(EventLoop& loop, Links& links, CopyThreads& copy_threads, FlowId flow, const Route& route,
                       std::vector<PullOwner> owners, std::vector<Destination> destinations, StagingArena& staging,
                       const transport::MemoryRegion& staging_region, bool gated, PullOptions options, Events events)
    : loop_(loop),
      links_(links),
      copy_threads_(copy_threads),
      flow_(flow),
      staging_(staging),
      staging_region_(staging_region),
      gated_(gated),
      options_(std::move(options)),
      slow_worker_(options_.delay_per_chunk),
      events_(std::move(events)),
      destinations_(std::move(destinations)),
      watch_timer_(loop, [this] { watch(); }),
      pace_timer_(loop, [this] { pump(); }) {
    for (PullOwner& config : owners) {
        owners_.push_back(std::make_unique<Owner>(std::move(config)));
        Owner& owner = *owners_.back();
        if (options_.trace != nullptr) {
            const char* verb = flow_ == FlowId::kSync ? "reads from" : "gathers from";
            owner.stall.trace_to(options_.trace,
                                 options_.trace->add_link(fmt::format("{} {}", verb, owner.config.name)));
        }
    }
    const auto index_of = [this](int trainer_rank) {
        const auto at = std::find_if(owners_.begin(), owners_.end(),
                                     [&](const auto& owner) { return owner->config.trainer_rank == trainer_rank; });
        assert(at != owners_.end());
        return static_cast<int>(at - owners_.begin());
    };
    GroupId last_group = -1;
    for (const Chunk& chunk : route.chunks) {
        last_group = std::max(last_group, chunk.group);
    }
    group_index_.assign(static_cast<std::size_t>(last_group) + 1, -1);
    std::vector<std::size_t> chunks_of_owner(owners_.size(), 0);
    for (const Chunk& chunk : route.chunks) {
        const int owner = index_of(chunk.owner);
        int& index = group_index_[static_cast<std::size_t>(chunk.group)];
        if (index < 0) {
            index = static_cast<int>(groups_.size());
            groups_.push_back({.group = chunk.group, .chunks = {}});
        }
        groups_[static_cast<std::size_t>(index)].chunks.push_back(static_cast<ChunkId>(chunks_.size()));
        ++chunks_of_owner[static_cast<std::size_t>(owner)];
        const auto id = static_cast<ChunkId>(chunks_.size());
        chunks_.push_back(std::make_unique<ChunkSlot>(
            *this, id,
            compile_chunk(chunk, owner, owners_[static_cast<std::size_t>(owner)]->is_self(), landing_rules(options_))));
        chunks_.back()->group_index = index;
        chunks_.back()->reader = owner;
        const bool gets = chunk.path != Path::kMapped;
        owners_[static_cast<std::size_t>(owner)]->gets |= gets;
        if (chunk.path != Path::kPacked) {
            for (std::size_t mirror = 0; mirror < owners_.size(); ++mirror) {
                const int rank = owners_[mirror]->config.trainer_rank;
                if (std::find(chunk.mirrors.begin(), chunk.mirrors.end(), rank) != chunk.mirrors.end()) {
                    chunks_.back()->mirrors.push_back(static_cast<int>(mirror));
                    owners_[mirror]->mirrors = true;
                    owners_[mirror]->gets |= gets;
                }
            }
        }
    }
    for (std::size_t i = 0; i < owners_.size(); ++i) {
        owners_[i]->ready.reserve(chunks_of_owner[i] + 1);  // and one that it is lent
        owners_[i]->parts.resize(groups_.size());
    }
    for (const auto& chunk : chunks_) {
        Owner::Part& part = owners_[static_cast<std::size_t>(chunk->compiled.owner)]
                                ->parts[static_cast<std::size_t>(chunk->group_index)];
        ++part.chunks;
        part.packs = part.packs || chunk->compiled.path == Path::kPacked;
        if (chunk->compiled.path != Path::kPacked) {
            part.direct.push_back(chunk->id);
        }
    }
    for (Group& group : groups_) {
        const auto& closed = options_.closed_groups;
        group.closed = gated_ || std::find(closed.begin(), closed.end(), group.group) != closed.end();
    }
    for (int i = 0; i < kGetNodes; ++i) {
        nodes_.push_back(std::make_unique<GetNode>(*this));
        nodes_.back()->next_free = std::exchange(free_nodes_, nodes_.back().get());
    }
}

PullEngine::~PullEngine() { assert(inflight_gets_ == 0 && jobs_ == 0); }

Status PullEngine::prepare_device() {
    if (options_.device == nullptr) {
        return ok_status();
    }
    DeviceTargets targets;
    if (!gated_) {
        targets.address = [this](ParameterId parameter) {
            return destinations_[static_cast<std::size_t>(parameter)].base;
        };
    }
    for (auto& chunk : chunks_) {
        if (chunk->compiled.landing == Landing::kInPlace && !checked(*chunk)) {
            continue;
        }
        const Owner& owner = *owners_[static_cast<std::size_t>(chunk->compiled.owner)];
        SLUICE_ASSIGN_OR_RETURN(
            chunk->program, compile_landing(*options_.device, chunk->compiled, owner.config.view.segments, targets));
    }
    return ok_status();
}

// A get that needs the owner's CPU, or ours, cannot touch the memory of a GPU.
Status PullEngine::check_device_link(const Owner& owner, const transport::LinkInfo& link) const {
    if (options_.device == nullptr || !options_.device_wire) {
        return ok_status();
    }
    if (owner.gets && link.probed == MemoryKind::kHost) {
        return invalid_argument(
            fmt::format("the link to {} is to carry GPU memory and was tried out with host memory; set "
                        "UcxOptions::probe_memory and probe_kind to memory of the GPU",
                        owner.config.name));
    }
    if (link.link_class == transport::LinkClass::kOneSided) {
        return ok_status();
    }
    return {StatusCode::kUnsupported,
            fmt::format("the link to {} ({}) cannot read GPU memory one-sidedly; let UCX_TLS have cuda_ipc (and set "
                        "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y) or an RDMA device with GPUDirect, or use --staged",
                        owner.config.name, link.transport),
            owner.config.world_rank};
}

Status PullEngine::open_keys() {
    for (auto& owner : owners_) {
        if (owner->is_self()) {
            continue;
        }
        transport::Endpoint* endpoint = links_.endpoint(owner->config.world_rank);
        if (endpoint == nullptr) {
            return sluice::peer_lost(owner->config.name + " is lost", owner->config.world_rank);
        }
        const auto open = [&](const RemoteRegion& region) -> Result<std::unique_ptr<transport::RemoteKey>> {
            if (region.key.empty()) {
                return std::unique_ptr<transport::RemoteKey>();
            }
            auto key = endpoint->unpack_key(region.key);
            return key.ok() ? std::move(key) : key.status().with_context(owner->config.name);
        };
        for (const RemoteRegion& region : owner->config.memory.segments) {
            SLUICE_ASSIGN_OR_RETURN(auto key, open(region));
            owner->segment_keys.push_back(std::move(key));
        }
        for (const RemoteRegion& region : owner->config.memory.gather_buffers) {
            SLUICE_ASSIGN_OR_RETURN(auto key, open(region));
            owner->buffer_keys.push_back(std::move(key));
        }
        SLUICE_ASSIGN_OR_RETURN(owner->slot_key, open(owner->config.memory.slots));
        owner->max_get_bytes = std::max<std::size_t>(endpoint->link().max_get_bytes, 1);
        SLUICE_RETURN_IF_ERROR(check_device_link(*owner, endpoint->link()));
    }
    return ok_status();
}

void PullEngine::close_keys() {
    for (auto& owner : owners_) {
        owner->segment_keys.clear();
        owner->buffer_keys.clear();
        owner->slot_key.reset();
    }
}

void PullEngine::start(std::uint64_t version) {
    assert(state_ == State::kIdle);
    state_ = State::kPulling;
    version_ = version;
    failure_ = ok_status();
    chunks_left_ = chunks_.size();
    bytes_pulled_ = 0;
    bytes_copied_locally_ = 0;
    mismatched_chunks_ = 0;
    pull_span_ = scatter_span_ = {};
    last_progress_ = Clock::now();
    slow_worker_.reset(last_progress_);
    reading_.reset();
    for (Group& group : groups_) {
        group.left = group.chunks.size();
        group.allowed = !group.closed;
    }
    for (auto& chunk : chunks_) {
        chunk->state = ChunkState::kWaiting;
        chunk->reader = chunk->compiled.owner;
        chunk->hash.reset();
    }
    for (auto& owner : owners_) {
        owner->ready.clear();
        owner->posting = nullptr;
        owner->bytes = 0;
        owner->mapped_bytes = 0;
        owner->window = 0;
        owner->busy.reset();
        owner->ready_to_lend = false;
        owner->unstarted = 0;
        owner->pace.reset(last_progress_);
        owner->first_open_part = 0;
        owner->stall.start(version, last_progress_);
        for (Owner::Part& part : owner->parts) {
            part.published = owner->is_self();
            part.reads_left = part.chunks;
            owner->unstarted += part.chunks;
        }
    }
    watch_timer_.start(kWatchInterval);
    Message begin;
    begin.kind = MessageKind::kBegin;
    begin.flow = flow_;
    begin.version = version;
    begin.slot = opens_groups() ? 1 : 0;
    for (auto& owner : owners_) {
        if (owner->is_self()) {
            for (int group = 0; !gated_ && group < groups(); ++group) {
                group_became_readable(*owner, group);
            }
        } else if (links_.lost(owner->config.world_rank)) {
            fail(sluice::peer_lost(owner->config.name + " is lost", owner->config.world_rank));
            return;
        } else {
            links_.send(owner->config.world_rank, begin);
            for (int group = 0; group < groups(); ++group) {
                if (groups_[static_cast<std::size_t>(group)].allowed) {
                    tell_open(*owner, group);
                }
            }
        }
    }
    note_stalls();
    finish_if_drained();
}

void PullEngine::allow(GroupId group, Destination destination) {
    assert(gated_);
    const int index = group_index(group);
    if (state_ != State::kPulling || index < 0) {
        return;
    }
    for (const ChunkId id : groups_[static_cast<std::size_t>(index)].chunks) {
        const ChunkSlot& chunk = *chunks_[static_cast<std::size_t>(id)];
        destinations_[static_cast<std::size_t>(chunk.compiled.pieces.front().parameter)] = destination;
    }
    open(group);
}

void PullEngine::open(GroupId group) {
    const int index = group_index(group);
    if (state_ != State::kPulling || index < 0) {
        return;
    }
    for (auto& owner : owners_) {
        tell_open(*owner, index);
    }
    let_read(index);
}

// Only to an owner that was told to wait for it.
void PullEngine::tell_open(Owner& owner, int group) {
    if (!opens_groups() || owner.is_self() || !owner.parts[static_cast<std::size_t>(group)].packs) {
        return;
    }
    Message message;
    message.kind = MessageKind::kOpen;
    message.flow = flow_;
    message.version = version_;
    message.group = groups_[static_cast<std::size_t>(group)].group;
    links_.send(owner.config.world_rank, message);
}

void PullEngine::let_read(int index) {
    Group& opened = groups_[static_cast<std::size_t>(index)];
    opened.allowed = true;
    last_progress_ = Clock::now();
    for (const ChunkId id : opened.chunks) {
        ChunkSlot& chunk = *chunks_[static_cast<std::size_t>(id)];
        Owner& owner = *owners_[static_cast<std::size_t>(chunk.compiled.owner)];
        if (chunk.state == ChunkState::kReady) {
            owner.push_ready(chunk);  // packed while the group was still closed
        } else if (chunk.compiled.path != Path::kPacked && owner.parts[static_cast<std::size_t>(index)].published) {
            make_ready(owner, chunk);
        }
    }
    pump();
}

void PullEngine::group_became_readable(Owner& owner, int group) {
    if (!groups_[static_cast<std::size_t>(group)].allowed) {
        return;
    }
    for (const ChunkId id : groups_[static_cast<std::size_t>(group)].chunks) {
        ChunkSlot& chunk = *chunks_[static_cast<std::size_t>(id)];
        if (owners_[static_cast<std::size_t>(chunk.compiled.owner)].get() == &owner &&
            chunk.compiled.path != Path::kPacked) {
            make_ready(owner, chunk);
        }
    }
}

void PullEngine::make_ready(Owner& owner, ChunkSlot& chunk) {
    if (chunk.state != ChunkState::kWaiting) {
        return;
    }
    chunk.state = ChunkState::kReady;
    if (groups_[static_cast<std::size_t>(chunk.group_index)].allowed) {
        owner.push_ready(chunk);
    }
}

PullEngine::Owner* PullEngine::owner_of(const Message& message) {
    for (auto& owner : owners_) {
        if (owner->config.world_rank == message.sender && !owner->is_self()) {
            return owner.get();
        }
    }
    return nullptr;
}

int PullEngine::groups() const { return static_cast<int>(groups_.size()); }

int PullEngine::group_index(GroupId group) const {
    return group < 0 || static_cast<std::size_t>(group) >= group_index_.size()
               ? -1
               : group_index_[static_cast<std::size_t>(group)];
}

void PullEngine::handle(const Message& message) {
    if (state_ != State::kPulling || message.version != version_) {
        return;  // of a version that is over: its owner has not heard of that yet
    }
    Owner* owner = owner_of(message);
    if (owner == nullptr) {
        dropped_.dropped(message, "it owns nothing of this route");
        return;
    }
    if (message.kind == MessageKind::kPacked) {
        if (message.chunk < 0 || static_cast<std::size_t>(message.chunk) >= chunks_.size()) {
            dropped_.dropped(message, fmt::format("there is no chunk {}", message.chunk));
            return;
        }
        ChunkSlot& chunk = *chunks_[static_cast<std::size_t>(message.chunk)];
        const RemoteMemory& memory = owner->config.memory;
        const bool slot_exists = message.slot >= 0 && memory.slot_bytes > 0 &&
                                 static_cast<std::uint64_t>(message.slot) < memory.slots.bytes / memory.slot_bytes;
        if (owners_[static_cast<std::size_t>(chunk.compiled.owner)].get() != owner ||
            chunk.compiled.path != Path::kPacked || chunk.state != ChunkState::kWaiting || !slot_exists) {
            dropped_.dropped(message,
                             fmt::format("chunk {} in slot {} was not expected of it", message.chunk, message.slot));
            return;
        }
        chunk.slot = message.slot;
        chunk.hash = message.hash;
        make_ready(*owner, chunk);
        pump();
        return;
    }
    const int index = group_index(message.group);
    if (index < 0 || owner->parts[static_cast<std::size_t>(index)].chunks == 0) {
        dropped_.dropped(message, fmt::format("nothing of group {} is read from it", message.group));
        return;
    }
    Owner::Part& part = owner->parts[static_cast<std::size_t>(index)];
    if (message.kind == MessageKind::kHashes) {
        const std::size_t count = message.payload.size() / sizeof(std::uint64_t);
        if (message.slot < 0 || message.payload.size() % sizeof(std::uint64_t) != 0 ||
            static_cast<std::size_t>(message.slot) + count > part.direct.size()) {
            dropped_.dropped(message, fmt::format("{} hashes from {} do not fit {} direct chunks", count, message.slot,
                                                  part.direct.size()));
            return;
        }
        for (std::size_t i = 0; i < count; ++i) {
            std::uint64_t hash = 0;
            std::memcpy(&hash, message.payload.data() + i * sizeof hash, sizeof hash);
            chunks_[static_cast<std::size_t>(part.direct[static_cast<std::size_t>(message.slot) + i])]->hash = hash;
        }
        return;
    }
    // kPublish
    const auto buffers = owner->config.memory.gather_buffers.size();
    if (part.published || message.slot < 0 || (buffers > 0 && static_cast<std::size_t>(message.slot) >= buffers)) {
        dropped_.dropped(message, fmt::format("group {} in buffer {} was not expected", message.group, message.slot));
        return;
    }
    part.published = true;
    part.buffer = message.slot;
    // All of a resident owner is readable from its first publish on, and stays so until the verdict.
    owner->ready_to_lend = buffers == 0;
    last_progress_ = Clock::now();
    group_became_readable(*owner, index);
    pump();
}

void PullEngine::pump() {
    if (state_ != State::kPulling || pumping_) {
        return;
    }
    pumping_ = true;
    pace_due_ = Clock::time_point::max();
    std::size_t idle_owners = 0;
    while (state_ == State::kPulling && idle_owners < owners_.size()) {
        Owner& owner = *owners_[next_owner_];
        next_owner_ = (next_owner_ + 1) % owners_.size();
        idle_owners = post_some(owner) ? 0 : idle_owners + 1;
    }
    pumping_ = false;
    if (pace_due_ != Clock::time_point::max()) {
        pace_timer_.start(pace_due_ - Clock::now());
    }
    note_stalls();
    finish_if_drained();
}

// What each owner waits for from which nothing is in flight, for the trace.
void PullEngine::note_stalls() {
    if (options_.trace == nullptr || state_ != State::kPulling || chunks_left_ == 0) {
        return;
    }
    for (auto& owner : owners_) {
        if (owner->busy.idle()) {
            owner->stall.waits_for(stall_cause(*owner));
        }
    }
}

StallClock::Cause PullEngine::stall_cause(Owner& owner) const {
    if (const ChunkSlot* chunk = owner.posting != nullptr ? owner.posting : owner.front()) {
        return {owner.blocked_by, chunk->compiled.group, chunk->id};
    }
    while (owner.first_open_part < groups_.size() && owner.parts[owner.first_open_part].reads_left == 0) {
        ++owner.first_open_part;
    }
    if (owner.first_open_part == groups_.size()) {
        return {TraceName::kStallNothingLeft};
    }
    const Group& group = groups_[owner.first_open_part];
    const TraceName name = !group.allowed ? (gated_ ? TraceName::kStallTurn : TraceName::kStallLayer)
                           : !owner.parts[owner.first_open_part].published ? TraceName::kStallPublish
                                                                           : TraceName::kStallPacked;
    return {name, group.group};
}

// Takes the owner's next readable chunk, when the limits allow. True when there is one to post.
bool PullEngine::start_chunk(Owner& owner) {
    ChunkSlot* chunk = owner.front();
    if (chunk == nullptr) {
        return false;
    }
    if (slow_worker_.slow() || owner.pace.slow()) {
        const Clock::time_point now = Clock::now();
        const Clock::time_point not_before = std::max(slow_worker_.not_before(), owner.pace.not_before());
        if (now < not_before) {
            owner.blocked_by = now < owner.pace.not_before() ? TraceName::kStallSlowOwner : TraceName::kStallSlowWorker;
            pace_due_ = std::min(pace_due_, not_before);
            return false;
        }
    }
    if (chunk->compiled.landing == Landing::kScatter) {
        // An owner's share of the staging, so that a slow one cannot take all of it; one chunk is always allowed.
        const std::int64_t share = staging_.capacity() / static_cast<std::int64_t>(owners_.size());
        owner.blocked_by = TraceName::kStallStaging;
        if (owner.staged_bytes > 0 && owner.staged_bytes + chunk->compiled.wire_bytes > share) {
            return false;
        }
        chunk->staging = staging_.try_reserve(chunk->compiled.wire_bytes);
        if (!chunk->staging) {
            return false;
        }
        owner.staged_bytes += chunk->compiled.wire_bytes;
    }
    owner.pop_front();
    --owners_[static_cast<std::size_t>(chunk->compiled.owner)]->unstarted;
    chunk->started = Clock::now();
    slow_worker_.chunk_started(chunk->started);
    owner.pace.chunk_started();
    if (chunk->compiled.landing == Landing::kLocalCopy) {
        something_in_flight(owner);
        land(*chunk);
        return true;
    }
    chunk->state = ChunkState::kPosting;
    owner.posting = chunk;
    owner.cursor = ReadCursor(chunk->compiled.reads);
    return true;
}

// Most bytes in flight from the owner. As long as several owners are read from, none may fill the window alone; and from a
// slow one no more than it sends in a short time, since what is posted cannot be read from its mirrors any more.
std::int64_t PullEngine::window(Owner& owner) const {
    const std::int64_t share =
        std::max(options_.inflight_bytes / static_cast<std::int64_t>(owners_.size()), std::int64_t{1});
    if (owner.window > 0 && owner.bytes - owner.window_at < kWindowStep) {
        return owner.window;
    }
    const double seconds = std::chrono::duration<double>(owner.busy.total(Clock::now())).count();
    if (owner.bytes == 0 || seconds <= 0) {
        return std::min(share, kFirstWindow);
    }
    const double ahead = static_cast<double>(owner.bytes) / seconds * kSecondsAhead;
    owner.window_at = owner.bytes;
    owner.window = ahead < static_cast<double>(share)
                       ? std::max(static_cast<std::int64_t>(ahead), std::min(share, kLeastWindow))
                       : share;
    return owner.window;
}

// Gives an owner that has nothing of its own left to read from a chunk that waits at another one and that it mirrors: the last
// in the route, which would wait longest. False when there is none.
bool PullEngine::lend(Owner& idle) {
    if (!idle.mirrors || !idle.ready_to_lend || idle.unstarted > 0 || idle.is_self() ||
        idle.inflight_bytes > window(idle) / 2) {
        return false;
    }
    const auto self = std::find_if(owners_.begin(), owners_.end(), [&](const auto& o) { return o.get() == &idle; });
    const int index = static_cast<int>(self - owners_.begin());
    const auto mirrored = [&](const ChunkSlot& chunk) {
        return std::find(chunk.mirrors.begin(), chunk.mirrors.end(), index) != chunk.mirrors.end() &&
               (chunk.compiled.landing != Landing::kLocalCopy ||
                (options_.device == nullptr && !idle.config.view.segments.empty()));
    };
    Owner* lender = nullptr;
    std::size_t place = 0;
    for (auto& owner : owners_) {
        if (owner.get() == &idle || (lender != nullptr && owner->ready.size() <= lender->ready.size())) {
            continue;
        }
        const ChunkSlot* last = nullptr;
        for (std::size_t i = 0; i < owner->ready.size(); ++i) {
            if (mirrored(*owner->ready[i]) && (last == nullptr || owner->ready[i]->id > last->id)) {
                last = owner->ready[i];
                lender = owner.get();
                place = i;
            }
        }
    }
    if (lender == nullptr) {
        return false;
    }
    ChunkSlot& chunk = *lender->ready[place];
    lender->remove_ready(place);
    chunk.reader = index;
    idle.push_ready(chunk);
    return true;
}

// One turn of an owner. False when nothing of it can be posted now.
bool PullEngine::post_some(Owner& owner) {
    const std::int64_t share = window(owner);
    bool posted = false;
    std::int64_t turn_bytes = 0;
    for (int gets = 0; gets < kTurnGets && turn_bytes < kTurnBytes; ++gets) {
        if (owner.posting == nullptr && !start_chunk(owner)) {
            if (posted || !lend(owner) || !start_chunk(owner)) {
                return posted;
            }
        }
        if (owner.posting == nullptr) {
            posted = true;  // a local copy was started
            continue;
        }
        if (free_nodes_ == nullptr || (owner.inflight_bytes > 0 && owner.inflight_bytes >= share) ||
            (inflight_bytes_ > 0 && inflight_bytes_ >= options_.inflight_bytes)) {
            owner.blocked_by = TraceName::kStallWindow;
            return posted;
        }
        transport::Endpoint* endpoint = links_.endpoint(owner.config.world_rank);
        if (endpoint == nullptr) {
            return posted;  // lost: peer_lost() is on its way
        }
        ChunkSlot& chunk = *owner.posting;
        const std::int64_t limit =
            std::min(static_cast<std::int64_t>(owner.max_get_bytes), std::max(share, std::int64_t{1}));
        const ReadCursor::Get get = owner.cursor.next(limit);
        const RemoteMemory& memory = owner.config.memory;

        std::uint64_t remote = 0;
        const transport::RemoteKey* key = nullptr;
        if (chunk.compiled.path == Path::kPacked) {
            remote = memory.slots.address + static_cast<std::uint64_t>(chunk.slot) * memory.slot_bytes;
            key = owner.slot_key.get();
        } else if (get.step->segment == kGatheredSegment) {
            const auto buffer =
                static_cast<std::size_t>(owner.parts[static_cast<std::size_t>(chunk.group_index)].buffer);
            remote = memory.gather_buffers[buffer].address;
            key = owner.buffer_keys[buffer].get();
        } else {
            remote = memory.segments[static_cast<std::size_t>(get.step->segment)].address;
            key = owner.segment_keys[static_cast<std::size_t>(get.step->segment)].get();
        }
        std::byte* local = nullptr;
        const transport::MemoryRegion* region = nullptr;
        if (get.step->parameter == ReadStep::kToStaging) {
            local = staging_.data() + *chunk.staging + get.dst_offset;
            region = &staging_region_;
        } else {
            const Destination& to = destinations_[static_cast<std::size_t>(get.step->parameter)];
            local = to.base + get.dst_offset;
            region = to.region;
        }

        GetNode& node = *std::exchange(free_nodes_, free_nodes_->next_free);
        node.owner = &owner;
        node.chunk = &chunk;
        node.bytes = get.bytes;
        something_in_flight(owner);
        owner.inflight_bytes += get.bytes;
        inflight_bytes_ += get.bytes;
        ++inflight_gets_;
        ++chunk.gets_in_flight;
        turn_bytes += get.bytes;
        posted = true;
        if (owner.cursor.done()) {
            chunk.state = ChunkState::kReading;
            owner.posting = nullptr;
        }
        endpoint->get(local, static_cast<std::size_t>(get.bytes), *region,
                      remote + static_cast<std::uint64_t>(get.src_offset), *key, node);
    }
    return posted;
}

// Of a chunk whose owner is this rank, that is a copy too.
void PullEngine::something_in_flight(Owner& owner) {
    owner.stall.resume();
    owner.busy.begin();
    reading_.begin();
}

void PullEngine::one_less_in_flight(Owner& owner, Clock::time_point now) {
    owner.busy.end(now);
    reading_.end(now);
    if (owner.busy.idle()) {
        owner.stall.idle(now);
    }
}

void PullEngine::get_done(GetNode& node, const Status& status) {
    Owner& owner = *node.owner;
    ChunkSlot& chunk = *node.chunk;
    const Clock::time_point now = Clock::now();
    owner.inflight_bytes -= node.bytes;
    inflight_bytes_ -= node.bytes;
    --inflight_gets_;
    --chunk.gets_in_flight;
    one_less_in_flight(owner, now);
    if (owner.busy.idle()) {
        pull_span_.extend(owner.busy.since(), now);
    }
    if (status.ok()) {
        owner.bytes += node.bytes;
        bytes_pulled_ += node.bytes;
        last_progress_ = now;
    }
    node.next_free = std::exchange(free_nodes_, &node);
    if (!status.ok()) {
        fail(Status(status.code(),
                    fmt::format("read of group {} from {} failed: {}", chunk.compiled.group, owner.config.name,
                                status.message()),
                    owner.config.world_rank));
    } else if (state_ == State::kPulling) {
        if (chunk.state == ChunkState::kReading && chunk.gets_in_flight == 0) {
            chunk_read(owner, chunk, now);
            owner_is_done_with(chunk);
            land(chunk);
        }
    }
    if (state_ != State::kPulling) {
        finish_if_drained();
    } else if (worth_a_turn(owner, node.bytes)) {
        pump();
    }
}

// Whether a get of `bytes` that has ended leaves room for enough to post. If not, others are in flight, whose ends ask again.
bool PullEngine::worth_a_turn(Owner& owner, std::int64_t bytes) const {
    const std::int64_t share = window(owner);
    const std::int64_t step = share / kPostedAtOnce;
    return inflight_gets_ + kGetNodes / kPostedAtOnce <= kGetNodes &&
           (bytes >= step || owner.inflight_bytes <= share - step);
}

void PullEngine::chunk_read(Owner& owner, const ChunkSlot& chunk, Clock::time_point now) {
    owner.pace.chunk_read(chunk.started, now);
    if (options_.trace != nullptr) {
        options_.trace->span({.name = TraceName::kRead,
                              .lane = owner.stall.lane(),
                              .version = version_,
                              .group = chunk.compiled.group,
                              .chunk = chunk.id,
                              .bytes = chunk.compiled.wire_bytes},
                             chunk.started, now);
    }
}

void PullEngine::fail(const Status& cause) {
    if (state_ != State::kPulling) {
        return;
    }
    state_ = State::kFailing;
    failure_ = cause;
    last_progress_ = Clock::now();
    for (auto& owner : owners_) {
        // What was taken for a chunk whose reads are only partly posted, or were all refused, is given back with its last get.
        owner->posting = nullptr;
        owner->ready.clear();
    }
    finish_if_drained();
}

void PullEngine::stop(const Status& cause, std::function<void()> drained) {
    if (state_ == State::kIdle) {
        drained();
        return;
    }
    drained_ = std::move(drained);
    fail(cause);
}

void PullEngine::peer_lost(int world_rank, const Status& cause) {
    for (auto& owner : owners_) {
        if (owner->config.world_rank == world_rank && !owner->is_self()) {
            fail(cause);
        }
    }
}

void PullEngine::finish_if_drained() {
    if (pumping_ || inflight_gets_ > 0 || jobs_ > 0 || state_ == State::kIdle ||
        (state_ == State::kPulling && chunks_left_ > 0)) {
        return;
    }
    for (auto& chunk : chunks_) {
        if (chunk->staging) {
            staging_.release(*chunk->staging);
            chunk->staging.reset();
        }
    }
    for (auto& owner : owners_) {
        owner->staged_bytes = 0;
        owner->stall.resume();
    }
    state_ = State::kIdle;
    watch_timer_.cancel();
    pace_timer_.cancel();
    events_.on_finished(failure_);
    if (drained_) {
        std::exchange(drained_, nullptr)();
    }
}

std::string PullEngine::waiting_for() const {
    for (const auto& owner : owners_) {
        for (std::size_t group = 0; group < groups_.size(); ++group) {
            const Owner::Part& part = owner->parts[group];
            if (part.reads_left > 0) {
                const char* what = owner->inflight_bytes > 0 ? "reads in flight"
                                   : part.published          ? "packed chunks"
                                                             : "publish";
                return fmt::format("{} ({} of group {})", owner->config.name, what, groups_[group].group);
            }
        }
    }
    return "the copy threads";
}

void PullEngine::watch() {
    const Clock::time_point now = Clock::now();
    watch_timer_.start(kWatchInterval);
    const bool reading =
        std::any_of(groups_.begin(), groups_.end(), [](const Group& g) { return g.allowed && g.left > 0; });
    if (!reading) {
        last_progress_ = now;  // a gated engine between two groups
    }
    if (state_ == State::kPulling && now - last_progress_ > options_.timeout) {
        fail(deadline_exceeded(fmt::format("version {}: nothing came for {:.1f} s, waiting for {}", version_,
                                           std::chrono::duration<double>(options_.timeout).count(), waiting_for())));
    }
    if (state_ == State::kFailing && now - last_progress_ > kDrainLimit) {
        for (auto& owner : owners_) {
            if (owner->inflight_bytes > 0) {
                links_.declare_lost(owner->config.world_rank,
                                    sluice::peer_lost("a read did not end", owner->config.world_rank));
            }
        }
    }
}

void PullEngine::traffic(std::vector<LinkTraffic>& out) const {
    out.clear();
    for (const auto& owner : owners_) {
        if (!owner->is_self()) {
            out.push_back({owner->config.trainer_rank, owner->bytes, owner->mapped_bytes,
                           std::chrono::duration<double>(owner->busy.total()).count()});
        }
    }
}

}  // namespace sluice

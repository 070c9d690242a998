#include "runtime/exchange/pull_engine.h"

#include "runtime/services/copy_engine.h"
#include "runtime/services/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <utility>

namespace sluice {
namespace {

using Clock = EventLoop::Clock;

constexpr std::size_t kGetNodes = 256;
// One turn of an owner: enough small gets to make the turn worth its bookkeeping, little enough to keep turns fair.
constexpr std::int64_t kTurnBytes = 1 << 20;
constexpr int kTurnGets = 32;
constexpr auto kWatchInterval = std::chrono::milliseconds(250);
// A read that does not end although its sync has failed is ended by closing its endpoint by force.
constexpr auto kDrainLimit = std::chrono::seconds(1);
constexpr std::int64_t kDroppedLinesLogged = 16;

}  // namespace

struct PullEngine::Group {
    GroupId group = 0;
    std::vector<ChunkId> chunks;
    std::size_t left = 0;
    bool allowed = false;
};

struct PullEngine::Owner {
    // One group as read from one owner.
    struct Part {
        std::vector<ChunkId> direct;  // by number; a kHashes message counts in this order
        int chunks = 0;
        int reads_left = 0;
        bool published = false;
        int buffer = 0;
    };

    PullOwner config;
    std::vector<std::unique_ptr<transport::RemoteKey>> segment_keys;
    std::vector<std::unique_ptr<transport::RemoteKey>> buffer_keys;
    std::unique_ptr<transport::RemoteKey> slot_key;
    std::size_t max_get_bytes = 1 << 20;
    std::vector<Part> parts;  // by group index

    // A heap with the chunk that is first in the route on top: packed chunks become readable later than direct ones, and
    // must not wait for those of all later groups. Has room for all chunks of the owner.
    std::vector<ChunkSlot*> ready;
    ChunkSlot* posting = nullptr;
    ReadCursor cursor;

    std::int64_t inflight_bytes = 0;
    std::int64_t staged_bytes = 0;
    Clock::time_point busy_since{};
    Clock::duration busy{};
    std::int64_t bytes = 0;
    std::int64_t mapped_bytes = 0;
    int copies_in_flight = 0;  // of mapped chunks
    Clock::time_point not_before{};

    [[nodiscard]] bool is_self() const { return config.self; }
    static bool later(const ChunkSlot* a, const ChunkSlot* b);
    void push_ready(ChunkSlot& chunk) {
        ready.push_back(&chunk);
        std::push_heap(ready.begin(), ready.end(), later);
    }
    [[nodiscard]] ChunkSlot* front() const { return ready.empty() ? nullptr : ready.front(); }
    void pop_front() {
        std::pop_heap(ready.begin(), ready.end(), later);
        ready.pop_back();
    }
};

class PullEngine::LandJob : public CopyJob {
public:
    LandJob(PullEngine& engine, ChunkSlot& chunk) : engine_(engine), chunk_(chunk) {}
    void run() override;
    void finished() override;

private:
    PullEngine& engine_;
    ChunkSlot& chunk_;
    std::uint64_t hash_ = 0;
    Clock::time_point begin_{}, end_{};
};

struct PullEngine::ChunkSlot {
    ChunkSlot(PullEngine& engine, ChunkId number, CompiledChunk chunk)
        : id(number), compiled(std::move(chunk)), job(engine, *this) {}

    ChunkId id;
    CompiledChunk compiled;
    int group_index = 0;
    LandJob job;

    ChunkState state = ChunkState::kWaiting;
    int gets_in_flight = 0;
    int slot = 0;
    std::optional<std::uint64_t> hash;
    std::optional<std::int64_t> staging;
    Clock::time_point started{};
};

bool PullEngine::Owner::later(const ChunkSlot* a, const ChunkSlot* b) { return a->id > b->id; }

class PullEngine::GetNode : public transport::Completion {
public:
    explicit GetNode(PullEngine& engine) : engine_(engine) {}
    void complete(const Status& status) override { engine_.get_done(*this, status); }

    Owner* owner = nullptr;
    ChunkSlot* chunk = nullptr;
    std::int64_t bytes = 0;
    GetNode* next_free = nullptr;

private:
    PullEngine& engine_;
};

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
      events_(std::move(events)),
      destinations_(std::move(destinations)),
      watch_timer_(loop, [this] { watch(); }),
      pace_timer_(loop, [this] { pump(); }) {
    for (PullOwner& config : owners) {
        owners_.push_back(std::make_unique<Owner>());
        owners_.back()->config = std::move(config);
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
    group_index_.assign(static_cast<std::size_t>(last_group + 1), -1);
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
            *this, id, compile_chunk(chunk, owner, owners_[static_cast<std::size_t>(owner)]->is_self())));
        chunks_.back()->group_index = index;
    }
    for (std::size_t i = 0; i < owners_.size(); ++i) {
        owners_[i]->ready.reserve(chunks_of_owner[i]);
        owners_[i]->parts.resize(groups_.size());
    }
    for (const auto& chunk : chunks_) {
        Owner::Part& part = owners_[static_cast<std::size_t>(chunk->compiled.owner)]
                                ->parts[static_cast<std::size_t>(chunk->group_index)];
        ++part.chunks;
        if (chunk->compiled.path != Path::kPacked) {
            part.direct.push_back(chunk->id);
        }
    }
    for (std::size_t i = 0; i < kGetNodes; ++i) {
        nodes_.push_back(std::make_unique<GetNode>(*this));
        nodes_.back()->next_free = std::exchange(free_nodes_, nodes_.back().get());
    }
}

PullEngine::~PullEngine() { assert(inflight_gets_ == 0 && jobs_ == 0); }

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
    next_start_ = last_progress_;
    for (Group& group : groups_) {
        group.left = group.chunks.size();
        group.allowed = !gated_;
    }
    for (auto& chunk : chunks_) {
        chunk->state = ChunkState::kWaiting;
        chunk->hash.reset();
    }
    for (auto& owner : owners_) {
        owner->ready.clear();
        owner->posting = nullptr;
        owner->bytes = 0;
        owner->mapped_bytes = 0;
        owner->busy = {};
        owner->not_before = last_progress_;
        for (Owner::Part& part : owner->parts) {
            part.published = owner->is_self();
            part.reads_left = part.chunks;
        }
    }
    watch_timer_.start(kWatchInterval);
    Message begin;
    begin.kind = MessageKind::kBegin;
    begin.flow = flow_;
    begin.version = version;
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
        }
    }
    finish_if_drained();
}

void PullEngine::allow(GroupId group, Destination destination) {
    assert(gated_);
    const int index = group_index(group);
    if (state_ != State::kPulling || index < 0) {
        return;
    }
    Group& opened = groups_[static_cast<std::size_t>(index)];
    opened.allowed = true;
    last_progress_ = Clock::now();
    for (const ChunkId id : opened.chunks) {
        ChunkSlot& chunk = *chunks_[static_cast<std::size_t>(id)];
        Owner& owner = *owners_[static_cast<std::size_t>(chunk.compiled.owner)];
        destinations_[static_cast<std::size_t>(chunk.compiled.pieces.front().parameter)] = destination;
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

void PullEngine::drop(const Message& message, const std::string& why) {
    if (++dropped_ <= kDroppedLinesLogged) {
        log::warning("dropped a message of kind {} from rank {}: {}", static_cast<int>(message.kind), message.sender,
                     why);
    }
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
        drop(message, "it owns nothing of this route");
        return;
    }
    if (message.kind == MessageKind::kPacked) {
        if (message.chunk < 0 || static_cast<std::size_t>(message.chunk) >= chunks_.size()) {
            drop(message, fmt::format("there is no chunk {}", message.chunk));
            return;
        }
        ChunkSlot& chunk = *chunks_[static_cast<std::size_t>(message.chunk)];
        const RemoteMemory& memory = owner->config.memory;
        const bool slot_exists = message.slot >= 0 && memory.slot_bytes > 0 &&
                                 static_cast<std::uint64_t>(message.slot) < memory.slots.bytes / memory.slot_bytes;
        if (owners_[static_cast<std::size_t>(chunk.compiled.owner)].get() != owner ||
            chunk.compiled.path != Path::kPacked || chunk.state != ChunkState::kWaiting || !slot_exists) {
            drop(message, fmt::format("chunk {} in slot {} was not expected of it", message.chunk, message.slot));
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
        drop(message, fmt::format("nothing of group {} is read from it", message.group));
        return;
    }
    Owner::Part& part = owner->parts[static_cast<std::size_t>(index)];
    if (message.kind == MessageKind::kHashes) {
        const std::size_t count = message.payload.size() / sizeof(std::uint64_t);
        if (message.slot < 0 || message.payload.size() % sizeof(std::uint64_t) != 0 ||
            static_cast<std::size_t>(message.slot) + count > part.direct.size()) {
            drop(message,
                 fmt::format("{} hashes from {} do not fit {} direct chunks", count, message.slot, part.direct.size()));
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
        drop(message, fmt::format("group {} in buffer {} was not expected", message.group, message.slot));
        return;
    }
    part.published = true;
    part.buffer = message.slot;
    last_progress_ = Clock::now();
    group_became_readable(*owner, index);
    pump();
}

void PullEngine::pump() {
    if (state_ != State::kPulling || pumping_) {
        return;
    }
    pumping_ = true;
    std::size_t idle_owners = 0;
    while (state_ == State::kPulling && idle_owners < owners_.size()) {
        Owner& owner = *owners_[next_owner_];
        next_owner_ = (next_owner_ + 1) % owners_.size();
        idle_owners = post_some(owner) ? 0 : idle_owners + 1;
    }
    pumping_ = false;
    finish_if_drained();
}

// Takes the owner's next readable chunk, when the limits allow. True when there is one to post.
bool PullEngine::start_chunk(Owner& owner) {
    ChunkSlot* chunk = owner.front();
    if (chunk == nullptr) {
        return false;
    }
    const bool paced = options_.delay_per_chunk.count() > 0 || owner.config.speed_percent < 100;
    const Clock::time_point now = paced ? Clock::now() : Clock::time_point{};
    if (paced && (now < next_start_ || now < owner.not_before)) {
        pace_timer_.start(std::max(next_start_, owner.not_before) - now);
        return false;
    }
    if (chunk->compiled.landing == Landing::kScatter) {
        // An owner's share of the staging, so that a slow one cannot take all of it; one chunk is always allowed.
        const std::int64_t share = staging_.capacity() / static_cast<std::int64_t>(owners_.size());
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
    chunk->started = Clock::now();
    if (options_.delay_per_chunk.count() > 0) {
        next_start_ = chunk->started + options_.delay_per_chunk;
    }
    if (owner.config.speed_percent < 100) {
        owner.not_before = Clock::time_point::max();  // until this chunk has been read
    }
    if (chunk->compiled.landing == Landing::kLocalCopy) {
        if (owner.copies_in_flight++ == 0 && owner.inflight_bytes == 0) {
            owner.busy_since = chunk->started;
        }
        land(*chunk);
        return true;
    }
    chunk->state = ChunkState::kPosting;
    owner.posting = chunk;
    owner.cursor = ReadCursor(chunk->compiled.reads);
    return true;
}

// One turn of an owner. False when nothing of it can be posted now.
bool PullEngine::post_some(Owner& owner) {
    // As long as several owners are read from, none may fill the window alone.
    const std::int64_t share =
        std::max(options_.inflight_bytes / static_cast<std::int64_t>(owners_.size()), static_cast<std::int64_t>(1));
    bool posted = false;
    std::int64_t turn_bytes = 0;
    for (int gets = 0; gets < kTurnGets && turn_bytes < kTurnBytes; ++gets) {
        if (owner.posting == nullptr && !start_chunk(owner)) {
            return posted;
        }
        if (owner.posting == nullptr) {
            posted = true;  // a local copy was started
            continue;
        }
        if (free_nodes_ == nullptr || (owner.inflight_bytes > 0 && owner.inflight_bytes >= share) ||
            (inflight_bytes_ > 0 && inflight_bytes_ >= options_.inflight_bytes)) {
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
        if (owner.inflight_bytes == 0 && owner.copies_in_flight == 0) {
            owner.busy_since = Clock::now();
        }
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

void PullEngine::get_done(GetNode& node, const Status& status) {
    Owner& owner = *node.owner;
    ChunkSlot& chunk = *node.chunk;
    const Clock::time_point now = Clock::now();
    owner.inflight_bytes -= node.bytes;
    inflight_bytes_ -= node.bytes;
    --inflight_gets_;
    --chunk.gets_in_flight;
    if (owner.inflight_bytes == 0 && owner.copies_in_flight == 0) {
        owner.busy += now - owner.busy_since;
        pull_span_.extend(owner.busy_since, now);
    }
    if (status.ok()) {
        owner.bytes += node.bytes;
        bytes_pulled_ += node.bytes;
    }
    node.next_free = std::exchange(free_nodes_, &node);
    if (!status.ok()) {
        fail(Status(status.code(),
                    fmt::format("read of group {} from {} failed: {}", chunk.compiled.group, owner.config.name,
                                status.message()),
                    owner.config.world_rank));
    } else if (state_ == State::kPulling) {
        last_progress_ = now;
        if (chunk.state == ChunkState::kReading && chunk.gets_in_flight == 0) {
            rest_slow_owner(owner, chunk);
            chunk_read(chunk);
        }
    }
    if (state_ == State::kPulling) {
        pump();
    } else {
        finish_if_drained();
    }
}

// A slow owner (a test's) rests after a chunk for as long as its speed says.
void PullEngine::rest_slow_owner(Owner& owner, const ChunkSlot& chunk) {
    if (owner.config.speed_percent < 100) {
        const Clock::time_point now = Clock::now();
        const auto took = now - chunk.started;
        owner.not_before = now + took * (100 - owner.config.speed_percent) / owner.config.speed_percent;
    }
}

// All bytes of the chunk are here: tell its owner, and land them.
void PullEngine::chunk_read(ChunkSlot& chunk) {
    owner_is_done_with(chunk);
    land(chunk);
}

// Nothing more is read of the owner for this chunk.
void PullEngine::owner_is_done_with(ChunkSlot& chunk) {
    Owner& owner = *owners_[static_cast<std::size_t>(chunk.compiled.owner)];
    Message message;
    message.flow = flow_;
    message.version = version_;
    message.group = chunk.compiled.group;
    message.chunk = chunk.id;
    message.slot = chunk.slot;
    if (chunk.compiled.path == Path::kPacked && !owner.is_self()) {
        message.kind = MessageKind::kSlotRead;
        links_.send(owner.config.world_rank, message);
    }
    if (--owner.parts[static_cast<std::size_t>(chunk.group_index)].reads_left == 0 && !owner.is_self()) {
        message.kind = MessageKind::kRelease;
        links_.send(owner.config.world_rank, message);
    }
}

// What this rank copies from itself has no checksum.
bool PullEngine::checked(const ChunkSlot& chunk) const {
    return options_.verify_hashes && !owners_[static_cast<std::size_t>(chunk.compiled.owner)]->is_self();
}

// Where the piece's segment starts in our own address space.
const std::byte* PullEngine::viewed(const ChunkSlot& chunk, const Piece& piece) const {
    const Owner& owner = *owners_[static_cast<std::size_t>(chunk.compiled.owner)];
    const PullOwner::View& view = owner.config.view;
    if (piece.segment == kGatheredSegment) {
        const int buffer = owner.parts[static_cast<std::size_t>(chunk.group_index)].buffer;
        return view.gather_buffers[static_cast<std::size_t>(buffer)];
    }
    return view.segments[static_cast<std::size_t>(piece.segment)];
}

void PullEngine::land(ChunkSlot& chunk) {
    chunk.state = ChunkState::kLanding;
    const bool check = checked(chunk);
    if (check && !chunk.hash) {
        fail(Status(StatusCode::kMismatch,
                    fmt::format("chunk {} of {} came without a checksum", chunk.id,
                                owners_[static_cast<std::size_t>(chunk.compiled.owner)]->config.name)));
        return;
    }
    if (chunk.compiled.landing == Landing::kInPlace && !check) {
        landed(chunk);
        return;
    }
    ++jobs_;
    copy_threads_.enqueue(chunk.job);
}

void PullEngine::LandJob::run() {
    begin_ = Clock::now();
    const CompiledChunk& compiled = chunk_.compiled;
    const std::byte* wire = chunk_.staging ? engine_.staging_.data() + *chunk_.staging : nullptr;
    std::int64_t offset = 0;
    bool converts = false;
    for (const Piece& piece : compiled.pieces) {
        std::byte* base = engine_.destinations_[static_cast<std::size_t>(piece.parameter)].base;
        if (compiled.landing == Landing::kLocalCopy) {
            strided_copy(piece.copy, engine_.viewed(chunk_, piece), base);
        } else if (compiled.landing == Landing::kScatter) {
            const std::int64_t item = wire_item_bytes(piece);
            StridedCopy scatter = destination_from_packed(piece.copy, offset, item);
            scatter.item = item;
            if (piece.wire_dtype() != piece.parameter_dtype) {
                converting_copy(scatter, piece.wire_dtype(), piece.parameter_dtype, wire, base);
                converts = true;
            } else {
                strided_copy(scatter, wire, base);
            }
        }
        offset += piece.wire_bytes();
    }
    if (engine_.checked(chunk_)) {
        // Over the destination, so that a wrong scatter is found too; a widened destination no longer has the wire's bytes.
        ChunkHash hash;
        if (converts) {
            hash.update(wire, static_cast<std::size_t>(compiled.wire_bytes));
        } else {
            for (const Piece& piece : compiled.pieces) {
                StridedCopy written = piece.copy;
                written.item = wire_item_bytes(piece);
                hash.update_destination(written, engine_.destinations_[static_cast<std::size_t>(piece.parameter)].base);
            }
        }
        hash_ = hash.digest();
    }
    end_ = Clock::now();
}

// The copy of a chunk whose owner's memory we see has ended: that was its read.
void PullEngine::copied(Owner& owner, ChunkSlot& chunk, Clock::time_point begin, Clock::time_point end) {
    if (owner.is_self()) {
        bytes_copied_locally_ += chunk.compiled.wire_bytes;
    } else {
        owner.bytes += chunk.compiled.wire_bytes;
        owner.mapped_bytes += chunk.compiled.wire_bytes;
        bytes_pulled_ += chunk.compiled.wire_bytes;
        pull_span_.extend(begin, end);
    }
    if (--owner.copies_in_flight == 0 && owner.inflight_bytes == 0) {
        owner.busy += end - owner.busy_since;
    }
    if (state_ == State::kPulling) {
        rest_slow_owner(owner, chunk);
        owner_is_done_with(chunk);
    }
}

void PullEngine::LandJob::finished() {
    --engine_.jobs_;
    engine_.scatter_span_.extend(begin_, end_);
    const CompiledChunk& compiled = chunk_.compiled;
    Owner& owner = *engine_.owners_[static_cast<std::size_t>(compiled.owner)];
    if (chunk_.staging) {
        engine_.staging_.release(*chunk_.staging);
        chunk_.staging.reset();
        owner.staged_bytes -= compiled.wire_bytes;
    }
    if (compiled.landing == Landing::kLocalCopy) {
        engine_.copied(owner, chunk_, begin_, end_);
    }
    if (engine_.state_ == State::kPulling) {
        if (engine_.checked(chunk_) && hash_ != *chunk_.hash) {
            ++engine_.mismatched_chunks_;
            engine_.fail(
                Status(StatusCode::kMismatch,
                       fmt::format(
                           "chunk {} (group {}, parameter {}) from {} has checksum {:016x}, its owner computed {:016x}",
                           chunk_.id, compiled.group, compiled.pieces.front().parameter, owner.config.name, hash_,
                           *chunk_.hash),
                       owner.config.world_rank));
        } else {
            engine_.landed(chunk_);
        }
    }
    if (engine_.state_ == State::kPulling) {
        engine_.pump();
    } else {
        engine_.finish_if_drained();
    }
}

void PullEngine::landed(ChunkSlot& chunk) {
    chunk.state = ChunkState::kLanded;
    --chunks_left_;
    last_progress_ = Clock::now();
    Group& group = groups_[static_cast<std::size_t>(chunk.group_index)];
    if (--group.left == 0) {
        events_.on_group_landed(group.group);
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
                           std::chrono::duration<double>(owner->busy).count()});
        }
    }
}

}  // namespace sluice

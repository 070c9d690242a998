#include "runtime/exchange/server.h"

#include "runtime/exchange/compiled_chunk.h"
#include "runtime/exchange/device_chunks.h"
#include "runtime/services/copy_engine.h"
#include "runtime/services/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

namespace sluice {
namespace {

using Clock = EventLoop::Clock;

// Hashes of one kHashes message at most.
constexpr std::size_t kHashesPerMessage = 256;
// Where a GPU packs and reads in turns: of the slots of a consumer, the part (one in so many) that it may still be reading when the next turn of packing
// starts, so that the device need not wait for messages.
constexpr int kStillReadAtATurn = 8;

}  // namespace

/// One demand: what its consumers read of this owner.
struct Server::DemandState {
    struct PackedChunk {
        const ServedChunk* chunk = nullptr;
        int group = 0;             // index
        PackSlot* slot = nullptr;  // where it lies packed or is being packed, if it does
        ChunkProgram pack = {};
    };
    struct Part {  // of one group
        std::vector<const ServedChunk*> direct;
        std::vector<std::uint64_t> hashes;          // of the direct chunks, this version
        std::vector<ChunkProgram> programs;         // that read them, on a device
        std::vector<const DeviceProgram*> readers;  // the same
        int chunks = 0;
    };

    std::vector<PackedChunk> packed;  // in reading order
    std::vector<Part> parts;          // by group index
    std::vector<Consumer*> consumers;
    int packing = 0;  // chunks of it that are being packed
};

struct Server::Consumer {
    ServedConsumer config;
    DemandState* demand = nullptr;
    std::uint64_t begun = 0;  // the version it has asked for
    bool lost = false;
    int announced = 0;            // groups it was told of
    std::size_t next_packed = 0;  // its place in demand->packed
    int held_slots = 0;
    bool packs = false;                           // it is the turn of packing for it, not of its reading (takes_turns)
    bool opens_groups = false;                    // it reads packed chunks of groups that it has opened, only
    std::vector<std::uint64_t> opened;            // by group index: the last version it opened the group in
    std::vector<std::uint64_t> released;          // by group index: the last version it released
    std::vector<PackSlot*> reading;               // by place in demand->packed: the slot it was told to read
    std::uint16_t lane = 0;                       // of a trace
    std::vector<Clock::time_point> announced_at;  // by group index, for a trace
};

struct Server::GroupState {
    GroupId group = 0;
    int buffer = 0;
    bool released = false;
    int last_consumer = -1;         // world rank of the one that released it last
    std::int64_t direct_bytes = 0;  // of the chunks that are hashed where they lie
};

/// A serve slot, and the job that packs into it.
class Server::PackSlot : public CopyJob {
public:
    PackSlot(Server& server, int slot) : server_(server), number(slot) {}

    void run() override;
    void finished() override;

private:
    void pack_on_device(const DemandState::PackedChunk& packed);

    Server& server_;
    Status status_;  // of the device

public:
    const int number;
    enum class State : std::uint8_t { kFree, kPacking, kReady } state = State::kFree;
    DemandState* demand = nullptr;
    std::size_t place = 0;  // in demand->packed
    int readers = 0;
    bool told = false;  // somebody was told of it since it was packed
    std::uint64_t hash = 0;
    Clock::time_point begin{}, end{};
};

/// Hashes the direct chunks of one group for all demands.
class Server::HashJob : public CopyJob {
public:
    explicit HashJob(Server& server) : server_(server) {}
    void run() override;
    void finished() override;
    int group = 0;

private:
    void hash_on_device(DemandState::Part& part, int buffer);

    Server& server_;
    Status status_;  // of the device
    Clock::time_point begin_{}, end_{};
};

namespace {

const std::byte* base_of(const ServedMemory& memory, const Piece& piece, int buffer) {
    return piece.segment == kGatheredSegment ? memory.gather_buffers[static_cast<std::size_t>(buffer)]
                                             : memory.segments[static_cast<std::size_t>(piece.segment)];
}

// The gather buffer that the group lies in, if the owner gathers.
const std::byte* gathered_at(const ServedMemory& memory, int buffer) {
    return memory.gather_buffers.empty() ? nullptr : memory.gather_buffers[static_cast<std::size_t>(buffer)];
}

}  // namespace

void Server::PackSlot::pack_on_device(const DemandState::PackedChunk& packed) {
    const int buffer = server_.groups_[static_cast<std::size_t>(packed.group)].buffer;
    status_ = server_.memory_.device->run(
        *packed.pack,
        {server_.memory_.slots + number * server_.memory_.slot_bytes, gathered_at(server_.memory_, buffer)}, ran_on(),
        server_.hash_ ? &hash : nullptr);
    end = Clock::now();
}

void Server::PackSlot::run() {
    begin = Clock::now();
    const DemandState::PackedChunk& packed = demand->packed[place];
    if (packed.pack != nullptr) {
        pack_on_device(packed);
        return;
    }
    std::byte* to = server_.memory_.slots + number * server_.memory_.slot_bytes;
    std::int64_t offset = 0;
    for (const Piece& piece : packed.chunk->pieces) {
        const std::byte* from =
            base_of(server_.memory_, piece, server_.groups_[static_cast<std::size_t>(packed.group)].buffer);
        const StridedCopy copy = packed_from_source(piece.copy, offset, wire_item_bytes(piece));
        if (piece.source_dtype != piece.wire_dtype()) {
            converting_copy(copy, piece.source_dtype, piece.wire_dtype(), from, to);
        } else {
            strided_copy(copy, from, to);
        }
        offset += piece.wire_bytes();
    }
    if (server_.hash_) {
        ChunkHash sum;
        sum.update(to, static_cast<std::size_t>(offset));
        hash = sum.digest();
    }
    end = Clock::now();
}

void Server::PackSlot::finished() {
    --server_.jobs_;
    --demand->packing;
    state = State::kReady;
    if (!status_.ok()) {
        server_.failed(std::exchange(status_, ok_status()));
        server_.drained_check();
        return;
    }
    server_.packed_bytes_ += demand->packed[place].chunk->wire_bytes;
    if (server_.pack_begin_ == Clock::time_point{}) {
        server_.pack_begin_ = begin;
    }
    server_.pack_end_ = std::max(server_.pack_end_, end);
    if (server_.trace_ != nullptr) {
        const ServedChunk& chunk = *demand->packed[place].chunk;
        server_.trace_->span({.name = TraceName::kPack,
                              .lane = TraceRecorder::copy_lane(ran_on()),
                              .version = server_.version_,
                              .group = chunk.group,
                              .chunk = chunk.id,
                              .bytes = chunk.wire_bytes},
                             begin, end);
    }
    server_.pump();
    server_.drained_check();
}

void Server::HashJob::hash_on_device(DemandState::Part& part, int buffer) {
    if (status_.ok() && !part.programs.empty()) {
        status_ = server_.memory_.device->hash_all(part.readers, {nullptr, gathered_at(server_.memory_, buffer)},
                                                   Device::Side::kSource, ran_on(), part.hashes);
    }
}

void Server::HashJob::run() {
    begin_ = Clock::now();
    for (auto& demand : server_.demands_) {
        DemandState::Part& part = demand->parts[static_cast<std::size_t>(group)];
        if (server_.memory_.device != nullptr) {
            hash_on_device(part, server_.groups_[static_cast<std::size_t>(group)].buffer);
            continue;
        }
        for (std::size_t i = 0; i < part.direct.size(); ++i) {
            ChunkHash sum;
            for (const Piece& piece : part.direct[i]->pieces) {
                sum.update_source(piece.copy, base_of(server_.memory_, piece,
                                                      server_.groups_[static_cast<std::size_t>(group)].buffer));
            }
            part.hashes[i] = sum.digest();
        }
    }
    end_ = Clock::now();
}

void Server::HashJob::finished() {
    --server_.jobs_;
    server_.hashing_ = false;
    if (server_.trace_ != nullptr) {
        server_.trace_->span({.name = TraceName::kHash,
                              .lane = TraceRecorder::copy_lane(ran_on()),
                              .version = server_.version_,
                              .group = server_.groups_[static_cast<std::size_t>(group)].group},
                             begin_, end_);
    }
    if (!status_.ok()) {
        server_.failed(std::exchange(status_, ok_status()));
    } else if (server_.open_) {
        ++server_.hashed_;
        for (auto& consumer : server_.consumers_) {
            server_.announce(*consumer);
        }
        server_.check_released(group);
        server_.hash_next();
        server_.pump();
    }
    server_.drained_check();
}

Server::Server(Links& links, CopyThreads& copy_threads, FlowId flow, OwnerRoute route,
               std::vector<std::vector<ServedConsumer>> consumers, ServedMemory memory, bool hash, Events events,
               TraceRecorder* trace)
    : links_(links),
      copy_threads_(copy_threads),
      flow_(flow),
      route_(std::move(route)),
      memory_(std::move(memory)),
      hash_(hash),
      events_(std::move(events)),
      trace_(trace),
      hash_job_(std::make_unique<HashJob>(*this)) {
    for (const GroupId group : route_.group_order) {
        if (static_cast<std::size_t>(group) >= group_index_.size()) {
            group_index_.resize(static_cast<std::size_t>(group) + 1, -1);
        }
        group_index_[static_cast<std::size_t>(group)] = static_cast<int>(groups_.size());
        groups_.push_back({.group = group});
    }
    for (std::size_t i = 0; i < route_.demands.size(); ++i) {
        auto demand = std::make_unique<DemandState>();
        demand->parts.resize(groups_.size());
        for (const ServedChunk& chunk : route_.demands[i].chunks) {
            const int group = group_index(chunk.group);
            assert(group >= 0);
            DemandState::Part& part = demand->parts[static_cast<std::size_t>(group)];
            ++part.chunks;
            if (chunk.path == Path::kPacked) {
                assert(chunk.wire_bytes <= memory_.slot_bytes);
                demand->packed.push_back({&chunk, group, nullptr, nullptr});
            } else {
                part.direct.push_back(&chunk);
                part.hashes.push_back(0);
                groups_[static_cast<std::size_t>(group)].direct_bytes += chunk.wire_bytes;
            }
        }
        for (ServedConsumer& config : consumers[i]) {
            auto consumer = std::make_unique<Consumer>();
            consumer->config = std::move(config);
            consumer->demand = demand.get();
            consumer->opened.assign(groups_.size(), 0);
            consumer->released.assign(groups_.size(), 0);
            consumer->reading.assign(demand->packed.size(), nullptr);
            if (trace_ != nullptr) {
                consumer->lane = trace_->add_link(fmt::format(
                    "{} {}", flow_ == FlowId::kSync ? "serves" : "serves shards to", consumer->config.name));
                consumer->announced_at.resize(groups_.size());
            }
            demand->consumers.push_back(consumer.get());
            consumers_.push_back(std::move(consumer));
        }
        demands_.push_back(std::move(demand));
    }
    for (int slot = 0; slot < memory_.slot_count; ++slot) {
        slots_.push_back(std::make_unique<PackSlot>(*this, slot));
    }
    const int consumer_count = std::max<int>(1, static_cast<int>(consumers_.size()));
    slots_per_consumer_ = std::max(1, memory_.slot_count / consumer_count);
}

Server::~Server() { assert(jobs_ == 0); }

Status Server::prepare_device() {
    if (memory_.device == nullptr) {
        return ok_status();
    }
    for (auto& demand : demands_) {
        for (DemandState::PackedChunk& packed : demand->packed) {
            SLUICE_ASSIGN_OR_RETURN(packed.pack, compile_pack(*memory_.device, *packed.chunk, memory_.segments));
        }
        for (DemandState::Part& part : demand->parts) {
            for (const ServedChunk* chunk : part.direct) {
                if (hash_) {
                    SLUICE_ASSIGN_OR_RETURN(ChunkProgram program,
                                            compile_source(*memory_.device, *chunk, memory_.segments));
                    part.readers.push_back(program.get());
                    part.programs.push_back(std::move(program));
                }
            }
        }
    }
    return ok_status();
}

void Server::failed(const Status& cause) {
    // Nothing more is told: what this version has packed and hashed from here on may be wrong.
    if (std::exchange(open_, false) && events_.on_failed) {
        events_.on_failed(cause);
    }
}

int Server::group_index(GroupId group) const {
    return group < 0 || static_cast<std::size_t>(group) >= group_index_.size()
               ? -1
               : group_index_[static_cast<std::size_t>(group)];
}

void Server::open(std::uint64_t version) {
    assert(jobs_ == 0 && version > version_);
    version_ = version;
    open_ = true;
    published_ = hashed_ = 0;
    packed_bytes_ = 0;
    pack_begin_ = pack_end_ = {};
    for (GroupState& group : groups_) {
        group.released = false;
        group.last_consumer = -1;
    }
    for (auto& slot : slots_) {
        leave_slot(*slot);
    }
    for (auto& consumer : consumers_) {
        consumer->announced = 0;
        consumer->next_packed = 0;
        consumer->held_slots = 0;
        consumer->packs = false;
        std::fill(consumer->reading.begin(), consumer->reading.end(), nullptr);
        std::fill(consumer->announced_at.begin(), consumer->announced_at.end(), Clock::time_point{});
    }
}

void Server::publish(std::uint64_t version, GroupId group, int buffer) {
    if (!open_ || version != version_) {
        return;  // it has failed meanwhile, or before it was opened
    }
    const int index = group_index(group);
    assert(index == published_ && "groups are published in the one order");
    groups_[static_cast<std::size_t>(index)].buffer = buffer;
    ++published_;
    if (trace_ != nullptr) {
        trace_->instant({.name = TraceName::kPublished,
                         .lane = TraceRecorder::kTransportLane,
                         .version = version_,
                         .group = group});
    }
    if (hash_) {
        hash_next();
    } else {
        hashed_ = published_;
    }
    for (auto& consumer : consumers_) {
        announce(*consumer);
    }
    check_released(index);
    pump();
}

// One group at a time, so that packing for the first groups does not wait for the hashes of the last.
void Server::hash_next() {
    if (hashing_ || hashed_ == published_) {
        return;
    }
    hashing_ = true;
    hash_job_->group = hashed_;
    enqueue(*hash_job_, groups_[static_cast<std::size_t>(hashed_)].direct_bytes);
}

void Server::announce(Consumer& consumer) {
    if (!open_ || consumer.begun != version_ || consumer.lost) {
        return;
    }
    Message message;
    message.flow = flow_;
    message.version = version_;
    for (; consumer.announced < hashed_; ++consumer.announced) {
        const GroupState& group = groups_[static_cast<std::size_t>(consumer.announced)];
        const DemandState::Part& part = consumer.demand->parts[static_cast<std::size_t>(consumer.announced)];
        if (part.chunks == 0) {
            continue;
        }
        message.group = group.group;
        const std::size_t most = std::min(kHashesPerMessage, links_.max_payload_bytes() / sizeof(part.hashes[0]));
        for (std::size_t first = 0; hash_ && first < part.hashes.size(); first += most) {
            const std::size_t count = std::min(most, part.hashes.size() - first);
            message.kind = MessageKind::kHashes;
            message.slot = static_cast<std::int32_t>(first);
            message.payload = std::as_bytes(std::span(part.hashes).subspan(first, count));
            links_.send(consumer.config.world_rank, message);
        }
        message.kind = MessageKind::kPublish;
        message.slot = group.buffer;
        message.payload = {};
        links_.send(consumer.config.world_rank, message);
        if (trace_ != nullptr) {
            consumer.announced_at[static_cast<std::size_t>(consumer.announced)] = Clock::now();
        }
    }
}

void Server::pump() {
    if (!open_ || pumping_ || consumers_.empty()) {
        return;
    }
    pumping_ = true;
    std::size_t idle = 0;
    while (idle < consumers_.size()) {
        Consumer& consumer = *consumers_[next_consumer_];
        next_consumer_ = (next_consumer_ + 1) % consumers_.size();
        idle = serve_next(consumer) ? 0 : idle + 1;
    }
    pumping_ = false;
}

// Tells the consumer of its next packed chunk, or starts to pack one of those that it may be told of without reading any first. False
// when neither can be done now.
bool Server::serve_next(Consumer& consumer) {
    const std::vector<DemandState::PackedChunk>& chunks = consumer.demand->packed;
    if (consumer.lost || consumer.begun != version_ || consumer.next_packed == chunks.size() ||
        consumer.held_slots >= slots_per_consumer_ || !may_be_told(consumer, consumer.next_packed)) {
        return false;
    }
    const DemandState::PackedChunk& next = chunks[consumer.next_packed];
    const bool told_now = !takes_turns(consumer) || 2 * consumer.demand->packing <= memory_.device->lanes();
    if (told_now && next.slot != nullptr && next.slot->state == PackSlot::State::kReady) {
        tell(consumer);
        return true;
    }
    if (!takes_turns(consumer)) {
        return pack_ahead(consumer);
    }
    consumer.packs |= next.slot == nullptr && kStillReadAtATurn * consumer.held_slots <= slots_per_consumer_;
    consumer.packs = consumer.packs && pack_ahead(consumer);
    return consumer.packs;
}

// A GPU that several processes use serves them in turns, and changing over costs as much as packing 300 MB. So it packs all that the consumer
// has slots for, and the consumer is told when only the last few of them are still being packed.
bool Server::takes_turns(const Consumer& consumer) const {
    return memory_.device != nullptr && consumer.config.shares_gpu;
}

// Starts to pack the first chunk that the consumer may be told of without reading any first and that is not packed yet.
bool Server::pack_ahead(Consumer& consumer) {
    const std::vector<DemandState::PackedChunk>& chunks = consumer.demand->packed;
    const std::size_t end = std::min(
        chunks.size(), consumer.next_packed + static_cast<std::size_t>(slots_per_consumer_ - consumer.held_slots));
    for (std::size_t place = consumer.next_packed;
         place < end && chunks[place].group < published_ && may_be_told(consumer, place); ++place) {
        if (chunks[place].slot == nullptr) {
            return start_packing(*consumer.demand, place);
        }
    }
    return false;
}

// The consumer reads the chunk as soon as it is told of it, and has staging; or there are slots enough for all, so that nobody waits for one
// that it keeps meanwhile.
bool Server::may_be_told(const Consumer& consumer, std::size_t place) const {
    if (memory_.slot_count >= static_cast<int>(consumers_.size())) {
        return true;
    }
    const int group = consumer.demand->packed[place].group;
    return !consumer.opens_groups || consumer.opened[static_cast<std::size_t>(group)] == version_;
}

void Server::enqueue(CopyJob& job, std::int64_t bytes) {
    ++jobs_;
    if (memory_.device != nullptr) {
        copy_threads_.enqueue(job);  // It waits for the device, however small it is.
    } else {
        copy_threads_.enqueue(job, bytes);
    }
}

bool Server::start_packing(DemandState& demand, std::size_t place) {
    PackSlot* slot = take_slot();
    if (slot == nullptr) {
        return false;
    }
    slot->state = PackSlot::State::kPacking;
    slot->demand = &demand;
    slot->place = place;
    slot->readers = 0;
    slot->told = false;
    demand.packed[place].slot = slot;
    ++demand.packing;
    enqueue(*slot, demand.packed[place].chunk->wire_bytes);
    return true;
}

// Of its next packed chunk, which is ready.
void Server::tell(Consumer& consumer) {
    const DemandState::PackedChunk& packed = consumer.demand->packed[consumer.next_packed];
    PackSlot& slot = *packed.slot;
    ++slot.readers;
    slot.told = true;
    ++consumer.held_slots;
    consumer.reading[consumer.next_packed] = &slot;
    Message message;
    message.kind = MessageKind::kPacked;
    message.flow = flow_;
    message.version = version_;
    message.group = packed.chunk->group;
    message.chunk = packed.chunk->id;
    message.slot = slot.number;
    message.hash = slot.hash;
    ++consumer.next_packed;
    links_.send(consumer.config.world_rank, message);
}

// A free slot, or one whose chunk nobody reads just now: a replica that has not come to it yet gets it packed again.
Server::PackSlot* Server::take_slot() {
    PackSlot* idle = nullptr;
    for (auto& slot : slots_) {
        if (slot->state == PackSlot::State::kFree) {
            return slot.get();
        }
        // Not one that its consumer is still to be told of: two consumers could take one slot from each other for ever.
        if (slot->state == PackSlot::State::kReady && slot->readers == 0 && !awaited(*slot)) {
            // The one that the fewest will still want: the furthest behind in its demand's order.
            if (idle == nullptr || slot->place < idle->place) {
                idle = slot.get();
            }
        }
    }
    if (idle != nullptr) {
        leave_slot(*idle);
    }
    return idle;
}

// Some consumer has not come to the slot's chunk yet.
bool Server::wanted(const PackSlot& slot) {
    return std::any_of(slot.demand->consumers.begin(), slot.demand->consumers.end(), [&](const Consumer* consumer) {
        return !consumer->lost && consumer->next_packed <= slot.place;
    });
}

// It was packed for a consumer that is still to be told of it.
bool Server::awaited(const PackSlot& slot) const {
    return !slot.told &&
           std::any_of(slot.demand->consumers.begin(), slot.demand->consumers.end(), [&](const Consumer* consumer) {
               return !consumer->lost && consumer->next_packed <= slot.place && may_be_told(*consumer, slot.place);
           });
}

void Server::leave_slot(PackSlot& slot) {
    if (slot.state != PackSlot::State::kFree && slot.demand->packed[slot.place].slot == &slot) {
        slot.demand->packed[slot.place].slot = nullptr;
    }
    slot.state = PackSlot::State::kFree;
    slot.readers = 0;
}

Server::Consumer* Server::consumer_of(const Message& message) const {
    for (const auto& consumer : consumers_) {
        if (consumer->config.world_rank == message.sender) {
            return consumer.get();
        }
    }
    return nullptr;
}

void Server::handle(const Message& message) {
    Consumer* consumer = consumer_of(message);
    if (consumer == nullptr) {
        dropped_.dropped(message, "it reads nothing of this rank");
        return;
    }
    if (message.kind == MessageKind::kBegin) {
        consumer->begun = std::max(consumer->begun, message.version);
        consumer->opens_groups = message.slot == 1;
        announce(*consumer);
        pump();
        return;
    }
    if (message.kind == MessageKind::kRelease || message.kind == MessageKind::kOpen) {
        // May come before this rank has published the group or even opened the version: it is remembered.
        const int index = group_index(message.group);
        if (index < 0 || consumer->demand->parts[static_cast<std::size_t>(index)].chunks == 0) {
            dropped_.dropped(message, fmt::format("it reads nothing of group {}", message.group));
            return;
        }
        if (message.kind == MessageKind::kOpen) {
            std::uint64_t& opened = consumer->opened[static_cast<std::size_t>(index)];
            opened = std::max(opened, message.version);
            pump();
            return;
        }
        release(*consumer, index, message.version);
        return;
    }
    // kSlotRead
    if (!open_ || message.version != version_) {
        return;
    }
    const auto& packed = consumer->demand->packed;
    const auto at = std::lower_bound(packed.begin(), packed.end(), message.chunk,
                                     [](const DemandState::PackedChunk& p, ChunkId id) { return p.chunk->id < id; });
    const auto place = static_cast<std::size_t>(at - packed.begin());
    if (at == packed.end() || at->chunk->id != message.chunk || consumer->reading[place] == nullptr) {
        dropped_.dropped(message, fmt::format("chunk {} was not packed for it", message.chunk));
        return;
    }
    PackSlot& slot = *std::exchange(consumer->reading[place], nullptr);
    --consumer->held_slots;
    if (--slot.readers == 0) {
        if (!wanted(slot)) {
            leave_slot(slot);
        }
    }
    pump();
}

void Server::release(Consumer& consumer, int group, std::uint64_t version) {
    std::uint64_t& released = consumer.released[static_cast<std::size_t>(group)];
    if (trace_ != nullptr && version == version_ && released < version &&
        consumer.announced_at[static_cast<std::size_t>(group)] != Clock::time_point{}) {
        trace_->span({.name = TraceName::kHeld,
                      .lane = consumer.lane,
                      .version = version,
                      .group = groups_[static_cast<std::size_t>(group)].group,
                      .peer = consumer.config.world_rank},
                     consumer.announced_at[static_cast<std::size_t>(group)], Clock::now());
    }
    released = std::max(released, version);
    if (version == version_) {
        groups_[static_cast<std::size_t>(group)].last_consumer = consumer.config.world_rank;
    }
    check_released(group);
}

// The consumer reads of the group, is alive, and has not released it in this version.
bool Server::owes_release(const Consumer& consumer, int group) const {
    return !consumer.lost && consumer.demand->parts[static_cast<std::size_t>(group)].chunks > 0 &&
           consumer.released[static_cast<std::size_t>(group)] < version_;
}

void Server::check_released(int group) {
    GroupState& state = groups_[static_cast<std::size_t>(group)];
    // A group that is still being hashed is not over, even when nobody reads it any more.
    if (!open_ || state.released || group >= hashed_) {
        return;
    }
    for (const auto& consumer : consumers_) {
        if (owes_release(*consumer, group)) {
            return;
        }
    }
    state.released = true;
    if (trace_ != nullptr) {
        trace_->instant({.name = TraceName::kReleased,
                         .lane = TraceRecorder::kTransportLane,
                         .version = version_,
                         .group = state.group});
    }
    events_.on_group_released(state.group);
}

void Server::peer_lost(int world_rank) {
    for (auto& consumer : consumers_) {
        if (consumer->config.world_rank != world_rank || consumer->lost) {
            continue;
        }
        consumer->lost = true;
        for (PackSlot*& slot : consumer->reading) {
            if (slot != nullptr) {
                --slot->readers;
                slot = nullptr;
            }
        }
        for (int group = 0; group < published_; ++group) {
            check_released(group);
        }
    }
    pump();
}

void Server::stop(std::function<void()> drained) {
    open_ = false;
    drained_ = std::move(drained);
    drained_check();
}

void Server::drained_check() {
    if (!open_ && jobs_ == 0 && drained_) {
        std::exchange(drained_, nullptr)();
    }
}

std::string Server::waiting_for(GroupId group) const {
    const int index = group_index(group);
    std::string names;
    for (const auto& consumer : consumers_) {
        if (index >= 0 && owes_release(*consumer, index)) {
            names += (names.empty() ? "" : ", ") + consumer->config.name;
        }
    }
    return names.empty() ? "nobody" : names;
}

int Server::last_to_release(GroupId group) const {
    const int index = group_index(group);
    if (index < 0) {
        return -1;
    }
    const GroupState& state = groups_[static_cast<std::size_t>(index)];
    for (const auto& consumer : consumers_) {
        if (!state.released && owes_release(*consumer, index)) {
            return consumer->config.world_rank;
        }
    }
    return state.last_consumer;
}

double Server::pack_seconds() const { return std::chrono::duration<double>(pack_end_ - pack_begin_).count(); }

}  // namespace sluice

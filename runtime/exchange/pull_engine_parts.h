// What a PullEngine consists of. For its own sources only.
#pragma once

#include "runtime/exchange/device_chunks.h"
#include "runtime/exchange/pull_engine.h"
#include "runtime/exchange/read_activity.h"
#include "runtime/exchange/read_cursor.h"
#include "runtime/exchange/read_pacing.h"
#include "runtime/services/copy_threads.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace sluice {

struct PullEngine::Group {
    GroupId group = 0;
    std::vector<ChunkId> chunks;
    std::size_t left = 0;
    bool closed = false;   // at the start of a version
    bool allowed = false;  // its chunks may be read
};

struct PullEngine::Owner {
    // One group as read from one owner.
    struct Part {
        std::vector<ChunkId> direct;  // by number; a kHashes message counts in this order
        int chunks = 0;
        bool packs = false;  // some of them are packed
        int reads_left = 0;
        bool published = false;
        int buffer = 0;
    };

    explicit Owner(PullOwner owner) : config(std::move(owner)), pace(config.speed_percent) {}

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
    BusyTime busy;
    std::int64_t bytes = 0;
    std::int64_t mapped_bytes = 0;
    std::int64_t window = 0;  // most bytes in flight, worked out when `bytes` was window_at; 0: not yet
    std::int64_t window_at = 0;
    SlowOwner pace;
    bool gets = false;           // chunks are read from it by transport
    bool mirrors = false;        // chunks of others, so that looking for one can be worth while
    int unstarted = 0;           // of its own chunks
    bool ready_to_lend = false;  // it serves this version from memory that stays as it is until the version's end
    TraceName blocked_by = TraceName::kStallWindow;  // why the chunk on top was not started or not posted any further
    std::size_t first_open_part = 0;                 // for stall causes: all parts before it have been read
    StallClock stall;

    [[nodiscard]] bool is_self() const { return config.self; }
    static bool later(const ChunkSlot* a, const ChunkSlot* b);
    void push_ready(ChunkSlot& chunk) {
        ready.push_back(&chunk);
        std::push_heap(ready.begin(), ready.end(), later);
    }
    /// Takes a chunk out of the middle.
    void remove_ready(std::size_t place) {
        ready[place] = ready.back();
        ready.pop_back();
        std::make_heap(ready.begin(), ready.end(), later);
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
    void run_on_device();
    void trace() const;

    PullEngine& engine_;
    ChunkSlot& chunk_;
    Status status_;  // of the device
    std::uint64_t hash_ = 0;
    EventLoop::Clock::time_point begin_{}, written_{}, end_{};  // `written_`: copied or scattered, not yet hashed
};

struct PullEngine::ChunkSlot {
    ChunkSlot(PullEngine& engine, ChunkId number, CompiledChunk chunk)
        : id(number), compiled(std::move(chunk)), job(engine, *this) {}

    ChunkId id;
    CompiledChunk compiled;
    int group_index = 0;
    LandJob job;
    ChunkProgram program = {};  // on a device
    std::vector<int> mirrors;   // other owners, by index, that have the bytes at the same place

    ChunkState state = ChunkState::kWaiting;
    int reader = 0;  // index of the owner that it is read from: its own, or a mirror
    int gets_in_flight = 0;
    int slot = 0;
    std::optional<std::uint64_t> hash;
    std::optional<std::int64_t> staging;
    EventLoop::Clock::time_point started{};
};

inline bool PullEngine::Owner::later(const ChunkSlot* a, const ChunkSlot* b) { return a->id > b->id; }

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

}  // namespace sluice

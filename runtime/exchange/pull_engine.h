#pragma once

#include "planner/plan.h"
#include "runtime/base/status.h"
#include "runtime/exchange/compiled_chunk.h"
#include "runtime/exchange/line_limit.h"
#include "runtime/exchange/links.h"
#include "runtime/exchange/message.h"
#include "runtime/exchange/read_activity.h"
#include "runtime/exchange/read_pacing.h"
#include "runtime/exchange/remote_memory.h"
#include "runtime/services/buffer.h"
#include "runtime/services/copy_threads.h"
#include "runtime/services/device.h"
#include "runtime/services/event_loop.h"
#include "runtime/services/trace.h"
#include "transport/transport.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sluice {

/// Where a parameter lies. `region` is the registration that contains it.
struct Destination {
    std::byte* base = nullptr;
    const transport::MemoryRegion* region = nullptr;
};

/// One owner of a route, as the puller needs it.
struct PullOwner {
    int trainer_rank = 0;  ///< As Chunk::owner counts.
    int world_rank = 0;
    std::string name;         ///< For messages: "trainer 3".
    int speed_percent = 100;  ///< For tests: reads from it are paced to this share of their speed.
    RemoteMemory memory;
    bool self = false;  ///< The owner is this very rank.
    /// Its memory in our own address space, when it is this rank or its chunks are mapped. Otherwise empty.
    struct View {
        std::vector<const std::byte*> segments;        ///< By SegmentId.
        std::vector<const std::byte*> gather_buffers;  ///< By buffer number.
        std::vector<Buffer> mappings;                  ///< What the pointers point into, unless it is ours.
    } view;
};

struct PullOptions {
    std::int64_t inflight_bytes = 32 << 20;
    bool verify_hashes = true;
    std::chrono::milliseconds timeout{60'000};     ///< Without any progress.
    std::chrono::milliseconds delay_per_chunk{0};  ///< For tests: a slow worker.
    TraceRecorder* trace = nullptr;                ///< Null: nothing is traced.
    std::vector<GroupId> closed_groups;            ///< Not read before open(); the owners pack of open groups only.
    Device* device = nullptr;                      ///< Whose memory the parameters are in; null: host memory.
    bool device_wire =
        true;  ///< On a device: gets write its memory. Otherwise they fill staging, from which a program scatters.
};

/// What a link carried in the last version.
struct LinkTraffic {
    int trainer_rank = 0;
    std::int64_t bytes = 0;
    std::int64_t mapped_bytes = 0;  ///< Of these, copied from mapped memory.
    double seconds = 0;             ///< Time with reads or mapped copies in flight.
};

/// The pulling side of a flow: reads the chunks of one route, from all owners at once, each as soon as it is readable, and lands
/// them. One version at a time. Everything on the event loop; callbacks too.
///
/// A chunk is readable when its group was published (direct, mapped) or it was packed (packed). At most `inflight_bytes` of reads are in
/// flight, taken from the owners in turn. Staging is taken for a chunk that can be read now, and given back after its scatter.
class PullEngine {
public:
    struct Events {
        /// All chunks of the group have landed and were right. Once per group and version, in any order of groups.
        std::function<void(GroupId)> on_group_landed;
        /// The version is over: ok when every chunk landed; otherwise the first failure. Nothing is in flight any more.
        std::function<void(const Status&)> on_finished;
    };

    /// `owners` holds every owner that a chunk of `route` names. With `gated` a group's chunks wait for allow(). `staging` must hold the largest chunk;
    /// it lies within `staging_region`.
    PullEngine(EventLoop& loop, Links& links, CopyThreads& copy_threads, FlowId flow, const Route& route,
               std::vector<PullOwner> owners, std::vector<Destination> destinations, StagingArena& staging,
               const transport::MemoryRegion& staging_region, bool gated, PullOptions options, Events events);
    ~PullEngine();
    PullEngine(const PullEngine&) = delete;
    PullEngine& operator=(const PullEngine&) = delete;

    /// Makes the device's programs for all chunks. Once, before the first version; nothing to do for host memory.
    Status prepare_device();
    /// Unpacks the owners' keys. Once, when all links are connected. Refuses a link over which gets cannot reach the device's memory.
    Status open_keys();
    /// Gives the keys back; before the links close. Nothing may be in flight.
    void close_keys();

    void start(std::uint64_t version);
    /// Lets the chunks of `group` be read, with `destination` for the parameter that they write (gated engines).
    void allow(GroupId group, Destination destination);
    /// Lets the chunks of a group of PullOptions::closed_groups be read, in the version that is being pulled.
    void open(GroupId group);
    [[nodiscard]] bool active() const { return state_ != State::kIdle; }

    /// kHashes, kPublish and kPacked of this flow. What does not fit the route or the state is dropped with a log line.
    void handle(const Message& message);
    /// Fails the version (does nothing when idle): no more reads are posted, what is in flight is drained, then on_finished.
    void fail(const Status& cause);
    /// Fails the version and runs `drained` once nothing is in flight (at once when idle).
    void stop(const Status& cause, std::function<void()> drained);
    void peer_lost(int world_rank, const Status& cause);

    /// Replaces what is in `out`; allocates nothing when it was filled here before.
    void traffic(std::vector<LinkTraffic>& out) const;
    [[nodiscard]] std::int64_t bytes_pulled() const { return bytes_pulled_; }
    /// Time with reads or copies in flight from any owner.
    [[nodiscard]] double reading_seconds() const { return std::chrono::duration<double>(reading_.total()).count(); }
    [[nodiscard]] std::int64_t mismatched_chunks() const { return mismatched_chunks_; }
    [[nodiscard]] std::int64_t bytes_copied_locally() const { return bytes_copied_locally_; }

    /// Spans of the last version, in steady-clock time; begin == end when nothing of the kind happened.
    struct Span {
        EventLoop::Clock::time_point begin{}, end{};
        void extend(EventLoop::Clock::time_point from, EventLoop::Clock::time_point to);
        [[nodiscard]] double seconds() const { return std::chrono::duration<double>(end - begin).count(); }
    };
    [[nodiscard]] Span pull_span() const { return pull_span_; }
    [[nodiscard]] Span scatter_span() const { return scatter_span_; }

private:
    enum class State : std::uint8_t { kIdle, kPulling, kFailing };
    enum class ChunkState : std::uint8_t { kWaiting, kReady, kPosting, kReading, kLanding, kLanded };
    struct ChunkSlot;
    struct Owner;
    struct Group;
    class GetNode;
    class LandJob;

    void make_ready(Owner& owner, ChunkSlot& chunk);
    void group_became_readable(Owner& owner, int group);
    void let_read(int group);
    void tell_open(Owner& owner, int group);
    [[nodiscard]] bool opens_groups() const { return gated_ || !options_.closed_groups.empty(); }
    void pump();
    bool start_chunk(Owner& owner);
    bool post_some(Owner& owner);
    bool lend(Owner& idle);
    [[nodiscard]] std::int64_t window(Owner& owner) const;
    [[nodiscard]] bool worth_a_turn(Owner& owner, std::int64_t bytes) const;
    void get_done(GetNode& node, const Status& status);
    void something_in_flight(Owner& owner);
    void one_less_in_flight(Owner& owner, EventLoop::Clock::time_point now);
    void chunk_read(Owner& owner, const ChunkSlot& chunk, EventLoop::Clock::time_point now);
    void owner_is_done_with(ChunkSlot& chunk);
    void note_stalls();
    [[nodiscard]] StallClock::Cause stall_cause(Owner& owner) const;
    [[nodiscard]] bool checked(const ChunkSlot& chunk) const;
    [[nodiscard]] Status check_device_link(const Owner& owner, const transport::LinkInfo& link) const;
    [[nodiscard]] const std::byte* viewed(const ChunkSlot& chunk, const Piece& piece) const;
    void land(ChunkSlot& chunk);
    void copied(Owner& owner, ChunkSlot& chunk, EventLoop::Clock::time_point begin, EventLoop::Clock::time_point end);
    void landed(ChunkSlot& chunk);
    void finish_if_drained();
    void watch();
    [[nodiscard]] std::string waiting_for() const;
    [[nodiscard]] Owner* owner_of(const Message& message);
    [[nodiscard]] int group_index(GroupId group) const;
    [[nodiscard]] int groups() const;

    EventLoop& loop_;
    Links& links_;
    CopyThreads& copy_threads_;
    FlowId flow_;
    StagingArena& staging_;
    const transport::MemoryRegion& staging_region_;
    bool gated_;
    PullOptions options_;
    SlowWorker slow_worker_;
    Events events_;

    std::vector<Destination> destinations_;
    std::vector<std::unique_ptr<ChunkSlot>> chunks_;
    std::vector<std::unique_ptr<Owner>> owners_;
    std::vector<Group> groups_;
    std::vector<int> group_index_;  // by GroupId; -1 = nothing of it is read
    std::vector<std::unique_ptr<GetNode>> nodes_;
    GetNode* free_nodes_ = nullptr;

    State state_ = State::kIdle;
    std::uint64_t version_ = 0;
    Status failure_;
    std::size_t next_owner_ = 0;
    std::int64_t inflight_bytes_ = 0;
    int inflight_gets_ = 0;
    int jobs_ = 0;
    std::size_t chunks_left_ = 0;
    std::int64_t bytes_pulled_ = 0;
    std::int64_t bytes_copied_locally_ = 0;
    std::int64_t mismatched_chunks_ = 0;
    Span pull_span_, scatter_span_;
    BusyTime reading_;
    EventLoop::Clock::time_point last_progress_{};
    EventLoop::Clock::time_point pace_due_{};  // the first moment at which a paced read may go on
    LineLimit dropped_;
    EventLoop::Timer watch_timer_;
    EventLoop::Timer pace_timer_;
    bool pumping_ = false;
    std::function<void()> drained_;
};

}  // namespace sluice

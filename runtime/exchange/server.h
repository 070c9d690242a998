#pragma once

#include "planner/plan.h"
#include "runtime/base/status.h"
#include "runtime/exchange/line_limit.h"
#include "runtime/exchange/links.h"
#include "runtime/exchange/message.h"
#include "runtime/services/copy_threads.h"
#include "runtime/services/device.h"
#include "runtime/services/event_loop.h"
#include "runtime/services/trace.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sluice {

/// One consumer of an owner: a worker (or, for gathering, a trainer) that shares a demand with its replicas.
struct ServedConsumer {
    int world_rank = 0;
    std::string name;         ///< For messages: "worker 2".
    bool shares_gpu = false;  ///< It reads with the GPU that packs for it.
};

/// The memory that an owner serves from.
struct ServedMemory {
    std::vector<const std::byte*> segments;        ///< By SegmentId.
    std::vector<const std::byte*> gather_buffers;  ///< By buffer number.
    std::byte* slots = nullptr;  ///< slot_count slots of slot_bytes each; may be null when nothing is packed.
    std::int64_t slot_bytes = 0;
    int slot_count = 0;
    Device* device = nullptr;  ///< Whose memory segments and gather buffers are; null: host memory.
};

/// The owner's side of a flow: announces groups, packs chunks ahead of their readers, counts releases. Everything on the event
/// loop; callbacks too.
///
/// The k-th group of `route.group_order` is published at the earliest as the k-th. A consumer is told of groups and packed chunks in
/// that order as soon as it has begun the version. Slots are shared by the consumers of a demand, and no consumer
/// may hold more than its share of them, so that a slow one does not stop the others. With fewer slots than consumers, nothing is packed or told
/// of a group that its consumer has still to open: whoever is told of a chunk reads it in finite time then.
class Server {
public:
    struct Events {
        /// Every consumer has released the group: its buffer may be used again.
        std::function<void(GroupId)> on_group_released;
        /// The device could not pack or hash: the version cannot go on. Everything is still to be stopped. May be empty for host memory.
        std::function<void(const Status&)> on_failed = {};
    };

    /// `consumers[i]` holds the consumers of `route.demands[i]`. `trace` may be null.
    Server(Links& links, CopyThreads& copy_threads, FlowId flow, OwnerRoute route,
           std::vector<std::vector<ServedConsumer>> consumers, ServedMemory memory, bool hash, Events events,
           TraceRecorder* trace);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    /// Makes the device's programs for all chunks. Once, before the first version; nothing to do for host memory.
    Status prepare_device();

    /// Groups that this owner publishes, in order. Groups in which nobody reads anything of it are not among them.
    [[nodiscard]] std::span<const GroupId> group_order() const { return route_.group_order; }

    /// Starts a version: nothing is published yet. The former version must be over (all released, or failed and drained).
    void open(std::uint64_t version);
    /// The next group of the order is readable (of a version that is not open: nothing happens); its gathered parts lie in gather buffer `buffer`.
    void publish(std::uint64_t version, GroupId group, int buffer);
    /// No more is packed or announced for this version; `drained` runs when no copy reads the memory any more.
    void stop(std::function<void()> drained);

    /// kBegin, kOpen, kSlotRead and kRelease of this flow. What does not fit the route or the state is dropped with a log line.
    void handle(const Message& message);
    /// A lost consumer is waited for no longer.
    void peer_lost(int world_rank);

    /// The names of the consumers that have not released `group`, for messages.
    [[nodiscard]] std::string waiting_for(GroupId group) const;
    /// World rank of the consumer that released `group` last; while not all have, of one that has not; -1 when there is none. Once
    /// on_group_released has been told of the group, on any thread that was told, until the next open().
    [[nodiscard]] int last_to_release(GroupId group) const;
    [[nodiscard]] std::int64_t packed_bytes() const { return packed_bytes_; }
    [[nodiscard]] double pack_seconds() const;

private:
    struct Consumer;
    struct DemandState;
    struct GroupState;
    class PackSlot;
    class HashJob;

    void announce(Consumer& consumer);
    void hash_next();
    void pump();
    bool serve_next(Consumer& consumer);
    bool pack_ahead(Consumer& consumer);
    bool start_packing(DemandState& demand, std::size_t place);
    void tell(Consumer& consumer);
    void enqueue(CopyJob& job, std::int64_t bytes);
    PackSlot* take_slot();
    [[nodiscard]] bool takes_turns(const Consumer& consumer) const;
    void leave_slot(PackSlot& slot);
    [[nodiscard]] static bool wanted(const PackSlot& slot);
    [[nodiscard]] bool awaited(const PackSlot& slot) const;
    [[nodiscard]] bool may_be_told(const Consumer& consumer, std::size_t place) const;
    void release(Consumer& consumer, int group, std::uint64_t version);
    [[nodiscard]] bool owes_release(const Consumer& consumer, int group) const;
    void check_released(int group);
    void drained_check();
    void failed(const Status& cause);
    [[nodiscard]] int group_index(GroupId group) const;
    [[nodiscard]] Consumer* consumer_of(const Message& message) const;

    Links& links_;
    CopyThreads& copy_threads_;
    FlowId flow_;
    OwnerRoute route_;
    ServedMemory memory_;
    bool hash_;
    Events events_;
    TraceRecorder* trace_;

    std::vector<std::unique_ptr<DemandState>> demands_;
    std::vector<std::unique_ptr<Consumer>> consumers_;
    std::vector<GroupState> groups_;  // in group order
    std::vector<int> group_index_;    // by GroupId; -1 = not served
    std::vector<std::unique_ptr<PackSlot>> slots_;
    std::unique_ptr<HashJob> hash_job_;

    std::uint64_t version_ = 0;
    bool open_ = false;
    int published_ = 0;  // groups that publish() was called for
    int hashed_ = 0;     // of those, how many may be announced
    bool hashing_ = false;
    int jobs_ = 0;
    int slots_per_consumer_ = 1;
    std::size_t next_consumer_ = 0;
    std::int64_t packed_bytes_ = 0;
    EventLoop::Clock::time_point pack_begin_{}, pack_end_{};
    LineLimit dropped_;
    bool pumping_ = false;
    std::function<void()> drained_;
};

}  // namespace sluice

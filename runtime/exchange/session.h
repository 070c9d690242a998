#pragma once

#include "runtime/base/settings.h"
#include "runtime/base/status.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/exchange/coordination.h"
#include "runtime/exchange/links.h"
#include "runtime/exchange/pull_engine.h"
#include "runtime/exchange/rank_plan.h"
#include "runtime/exchange/remote_memory.h"
#include "runtime/exchange/server.h"
#include "runtime/services/copy_threads.h"
#include "runtime/services/deadline.h"
#include "runtime/services/device.h"
#include "runtime/services/event_loop.h"
#include "runtime/services/trace.h"
#include "transport/transport.h"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sluice {

/// What a rank shows of its memory to those who pull from it, by flow.
struct MemoryCard {
    std::array<RemoteMemory, kFlowCount> flows;
    std::string device_uuid =
        {};  ///< Device::uuid() of the rank's GPU; empty when it has none. Filled in by the session.
};

/// What ranks have told the coordinator after their work; filled there only.
struct SessionNotes {
    std::vector<std::string> by_rank;  ///< By world rank; empty: none came.
    Status status;                     ///< Not ok: not all ranks came to send theirs in time, or one was lost.
};

/// One rank's part in a session: its threads, its transport, its links to the others, and the agreement with them. Trainer
/// and Worker are built on it. Made before the memory is registered, connected after the plan is known, closed before it is
/// destroyed.
class Session {
public:
    using TransportFactory = std::function<Result<std::unique_ptr<transport::Transport>>(EventLoop& loop)>;

    /// Starts the threads and opens the transport. With `device` the weights of this rank may lie in its memory; the loop selects it before the
    /// transport is opened. It outlives the session, has a lane for each copy thread, and is used by no other session: each opens its own, also for
    /// the same GPU.
    static Result<std::unique_ptr<Session>> open(const Settings& settings, const TransportFactory& open_transport,
                                                 Device* device = nullptr);
    /// Closes by force when close() was not called.
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// Records what this rank does from now on, at most `most_events`. Before a Trainer or Worker is made on the session.
    void record_trace(std::size_t most_events);
    /// Null when nothing is recorded.
    [[nodiscard]] TraceRecorder* trace() const { return trace_.get(); }

    /// Collective: exchanges addresses and memory cards. `mine` fails set-up on every rank when it is an error.
    Status exchange_cards(Bootstrap& bootstrap, const RankPlan& plan, Result<MemoryCard> mine, Deadline deadline);

    /// Opens the links to `peers` and to the coordinator and waits until all have said hello, or one of them is lost, or the ranks are told to
    /// abort. Also after an error the coordinator can be told of it, if it is alive: with `peers` that are an error it opens the link for that alone
    /// and returns it. Before it, flows must be set.
    Status connect(const Result<std::vector<int>>& peers, Deadline deadline);
    /// Agrees with all ranks that each is set up; `mine` is how this one's part has ended. Where a rank was lost or has not come in time nobody
    /// waits for it with `bootstrap` either.
    Status end_set_up(Bootstrap& bootstrap, const Status& mine, Deadline deadline);

    /// Who handles the messages of a flow; either may be null. Must stay valid until close().
    void set_flow(FlowId flow, Server* server, PullEngine* engine);
    /// Runs on the loop, once per failed round, after the flows' engines were told to fail.
    void set_abort_handler(std::function<void(const Status&)> handler);

    /// Collective over the ranks alive: brings every rank's note (its report, in whatever form) to the coordinator. Also after a failed round.
    SessionNotes gather_notes(const std::string& mine, Deadline deadline);

    /// Ends the session: agrees with all others alive that it is over, then closes the links, by force unless `graceful` (after
    /// a failed round). `before_close` runs on the loop just before and gives the remote keys back.
    void close(bool graceful, const std::function<void()>& before_close);

    [[nodiscard]] EventLoop& loop() { return *loop_; }
    [[nodiscard]] CopyThreads& copy_threads() { return *copy_threads_; }
    [[nodiscard]] transport::Transport& transport() { return *transport_; }
    /// Null for host memory.
    [[nodiscard]] Device* device() const { return device_; }
    [[nodiscard]] Links& links() { return *links_; }
    [[nodiscard]] Coordination& coordination() { return *coordination_; }
    [[nodiscard]] const Settings& settings() const { return settings_; }
    [[nodiscard]] const MemoryCard& card(int world_rank) const { return cards_[static_cast<std::size_t>(world_rank)]; }
    /// "trainer 3" or "worker 0".
    [[nodiscard]] std::string name_of(int world_rank) const;
    [[nodiscard]] const RankPlan& plan() const { return plan_; }

    /// Registers memory; counted. On any thread.
    Result<std::unique_ptr<transport::MemoryRegion>> register_memory(std::span<std::byte> memory, MemoryKind kind,
                                                                     transport::Access access);
    [[nodiscard]] std::int64_t registrations() const { return registrations_; }
    /// How often pools of messages had to grow beyond their first size.
    [[nodiscard]] std::int64_t pool_growth();
    [[nodiscard]] std::int64_t messages_sent();
    /// Cards have been exchanged: there are links, and coordination.
    [[nodiscard]] bool connected() const { return links_ != nullptr; }
    [[nodiscard]] bool is_coordinator();
    /// The rank that the last failed round's verdict named, or -1.
    [[nodiscard]] int last_failed_rank();

private:
    explicit Session(const Settings& settings) : settings_(settings) {}
    Status open_links(std::vector<int> peers, Deadline deadline);
    void dispatch(const Message& message);
    void lost(int peer, const Status& cause);
    void aborted(const Status& cause);
    void take_note(const Message& message);

    struct Flow {
        Server* server = nullptr;
        PullEngine* engine = nullptr;
    };

    Settings settings_;
    Device* device_ = nullptr;
    std::unique_ptr<TraceRecorder> trace_;
    std::unique_ptr<EventLoop> loop_;
    std::unique_ptr<CopyThreads> copy_threads_;
    std::unique_ptr<transport::Transport> transport_;
    std::unique_ptr<Links> links_;
    std::unique_ptr<Coordination> coordination_;
    RankPlan plan_;
    std::vector<MemoryCard> cards_;
    std::array<Flow, kFlowCount> flows_;
    std::vector<std::string> notes_;  // on the loop
    std::vector<Status> losses_;      // by world rank, on the loop
    std::function<void(const Status&)> abort_handler_;
    std::int64_t registrations_ = 0;
    bool ending_ = false;  // on the loop
    bool closed_ = false;
};

}  // namespace sluice

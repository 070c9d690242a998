#pragma once

#include "runtime/base/status.h"
#include "runtime/exchange/line_limit.h"
#include "runtime/exchange/links.h"
#include "runtime/exchange/message.h"
#include "runtime/services/deadline.h"
#include "runtime/services/event_loop.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace sluice {

/// How a session's ranks agree on the end of each round (ready, every version, the end), and how they notice that one of them
/// has died.
///
/// The lowest rank alive is the coordinator. Every rank reports the end of its part of a round to it; when all ranks alive have
/// reported, it sends everybody the same verdict: ok only if all reported ok and none has died. At the first failure it tells
/// everybody to abort, so that nobody waits for what will not come. If the coordinator dies, the next lowest rank takes over
/// and the reports are sent again.
/// Between every rank and the coordinator a heartbeat runs both ways, from start_heartbeats() on. Whoever gets one from a rank to which it
/// sends none answers it: ranks that do not agree yet on who is the coordinator are not taken for dead.
///
/// Everything but agree() and the accessors of the last verdict runs on the event loop.
class Coordination {
public:
    struct Options {
        std::chrono::milliseconds heartbeat_interval{250};
        std::chrono::milliseconds dead_after{1500};
    };

    /// The outcome of a round, the same on every rank.
    struct Verdict {
        Status status;         ///< The first cause; its peer() is whom the failure is about.
        int failed_rank = -1;  ///< The rank that reported the failure, or that was lost; -1 when ok.
    };

    /// `name_of(rank)` is for messages ("trainer 3"). `on_abort` runs at most once per round, on the loop, on every rank when the
    /// round has failed: stop what you do for it, then report.
    Coordination(EventLoop& loop, Links& links, std::function<std::string(int)> name_of,
                 std::function<void(const Status& cause)> on_abort, Options options);

    Coordination(const Coordination&) = delete;
    Coordination& operator=(const Coordination&) = delete;

    void start_heartbeats();
    void stop_heartbeats();

    /// Reports the end of this rank's part of the next round and waits for the verdict. `label` is for messages. Any thread but the
    /// loop; every rank calls it equally often. Runs into `deadline` with an error that names whom it waited for.
    Verdict agree(const std::string& label, const Status& mine, Deadline deadline);

    /// The round that is open now is the last: once it is decided links go, and nobody who is lost is followed by another. On the loop.
    void expect_last_round() { last_round_ = decided_ + 1; }

    /// The cause with which the round that has not been agreed on yet was aborted, if it was.
    [[nodiscard]] const Status& abort_cause() const { return abort_cause_; }

    /// kReport, kVerdict, kAbort and kHeartbeat.
    void handle(const Message& message);
    /// `cause` names the peer, in its text and as its peer().
    void peer_lost(int rank, const Status& cause);

    [[nodiscard]] int coordinator() const;
    /// The rank that failed in the last failed round, or -1. On the loop.
    [[nodiscard]] int last_failed_rank() const { return last_failed_rank_; }
    [[nodiscard]] bool is_coordinator() const { return coordinator() == links_.rank(); }

private:
    Verdict too_late(const std::string& label, std::uint64_t round);
    void report_mine(std::uint64_t round, const Status& mine);
    void send_report();
    void collect(int rank, std::uint64_t round, const Status& status);
    void round_failed(const Status& cause, int failed_rank);
    void conclude();
    /// That `rank` cannot be connected to, and so is lost.
    [[nodiscard]] Status unreachable(int rank, const Status& connected) const;
    void deliver(const Verdict& verdict);
    void abort_locally(const Status& cause, int failed_rank);
    void beat();
    [[nodiscard]] bool watches(int rank) const;
    void answer_heartbeat(const Message& message);
    void tell_everybody(MessageKind kind, std::uint64_t round, const Status& status, int failed_rank);
    [[nodiscard]] std::string missing() const;
    [[nodiscard]] bool over() const { return last_round_ > 0 && decided_ >= last_round_; }

    EventLoop& loop_;
    Links& links_;
    std::function<std::string(int)> name_of_;
    std::function<void(const Status&)> on_abort_;
    Options options_;

    // On the loop. Rounds are counted from 1 by every rank alike; decided_ of them have a verdict.
    std::uint64_t decided_ = 0;
    Verdict last_verdict_;
    std::uint64_t last_round_ = 0;  // 0: not known yet
    int last_failed_rank_ = -1;
    bool reported_ = false;  // this rank, for round decided_ + 1
    Status mine_;
    // Of rounds after that, by one that has given up a round which others have still to report.
    std::deque<std::pair<std::uint64_t, Status>> later_reports_;
    Status abort_cause_;                         // of round decided_ + 1
    std::vector<std::uint64_t> reported_round_;  // by rank, as coordinator
    Status first_cause_;                         // as coordinator, of round decided_ + 1
    int first_failed_rank_ = -1;
    bool told_to_abort_ = false;  // as coordinator, everybody, in round decided_ + 1
    LineLimit dropped_;
    EventLoop::Timer heartbeat_timer_;
    EventLoop::Clock::time_point last_beat_{};
    EventLoop::Clock::time_point watching_since_{};

    // Between agree() and the loop.
    std::mutex mutex_;
    std::condition_variable decided_changed_;
    std::uint64_t delivered_round_ = 0;
    std::uint64_t agreed_ = 0;  // rounds that this rank's agree() has returned from
    Verdict delivered_;
};

}  // namespace sluice

#include "runtime/exchange/coordination.h"

#include "runtime/services/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace sluice {
namespace {

using Clock = EventLoop::Clock;

constexpr std::size_t kLongestErrorText = 800;  // fits one message on every network
constexpr auto kCoordinatorFirst = std::chrono::milliseconds(300);
// How long a rank whose deadline has passed waits for what the coordinator makes of that.
constexpr auto kVerdictAfterDeadline = std::chrono::milliseconds(250);
// Ranks that may follow a coordinator that was lost and are listened to at once: as many as may fail together, few enough that all ranks
// of a large job can do it.
constexpr int kSuccessors = 64;

Message encode(MessageKind kind, std::uint64_t round, const Status& status, int failed_rank) {
    Message message;
    message.kind = kind;
    message.version = round;
    message.slot = static_cast<std::int32_t>(status.code());
    message.chunk = status.peer().value_or(-1);
    message.group = failed_rank;
    const std::string& text = status.message();
    message.payload = std::as_bytes(std::span(text.data(), std::min(text.size(), kLongestErrorText)));
    return message;
}

Status decode(const Message& message) {
    if (message.slot == static_cast<std::int32_t>(StatusCode::kOk)) {
        return ok_status();
    }
    const bool known = message.slot > 0 && message.slot <= static_cast<std::int32_t>(StatusCode::kInternal);
    const StatusCode code = known ? static_cast<StatusCode>(message.slot) : StatusCode::kInternal;
    std::string text(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
    return message.chunk >= 0 ? Status(code, std::move(text), message.chunk) : Status(code, std::move(text));
}

}  // namespace

Coordination::Coordination(EventLoop& loop, Links& links, std::function<std::string(int)> name_of,
                           std::function<void(const Status& cause)> on_abort, Options options)
    : loop_(loop),
      links_(links),
      name_of_(std::move(name_of)),
      on_abort_(std::move(on_abort)),
      options_(options),
      reported_round_(static_cast<std::size_t>(links.size()), 0),
      heartbeat_timer_(loop, [this] { beat(); }) {}

int Coordination::coordinator() const {
    int rank = 0;
    while (rank < links_.rank() && links_.lost(rank)) {
        ++rank;
    }
    return rank;
}

Coordination::Verdict Coordination::agree(const std::string& label, const Status& mine, Deadline deadline) {
    assert(!loop_.on_loop_thread());
    const std::uint64_t round = ++agreed_;
    const auto report = [&] { report_mine(round, mine); };
    loop_.run_and_wait(std::ref(report));  // of a size that needs no allocation
    std::unique_lock lock(mutex_);
    // The coordinator knows whom all wait for, so its deadline is to come first.
    const Clock::time_point until =
        links_.rank() == 0 || deadline.is_never() ? deadline.when() : deadline.when() + kCoordinatorFirst;
    if (!decided_changed_.wait_until(lock, until, [&] { return delivered_round_ >= round; })) {
        lock.unlock();
        return too_late(label, round);
    }
    return delivered_;
}

// Nobody may commit a round that this rank has given up, so the others are told; what was decided meanwhile holds here too.
Coordination::Verdict Coordination::too_late(const std::string& label, std::uint64_t round) {
    Status late;
    loop_.run_and_wait([&] {
        late = deadline_exceeded(fmt::format("{}: no agreement in time, waiting for {}", label, missing()));
        if (decided_ >= round) {
            return;
        }
        if (round > decided_ + 1) {
            later_reports_.back().second = late;
        } else if (is_coordinator()) {
            round_failed(late, links_.rank());
        } else if (mine_.ok()) {
            mine_ = late;
            send_report();
        }
    });
    {
        std::unique_lock lock(mutex_);
        if (decided_changed_.wait_for(lock, kVerdictAfterDeadline, [&] { return delivered_round_ >= round; })) {
            return delivered_;
        }
    }
    // The coordinator knows better whom all wait for.
    loop_.run_and_wait([&] {
        if (decided_ < round && !abort_cause_.ok()) {
            late = Status(StatusCode::kDeadlineExceeded, abort_cause_.message());
        }
    });
    return {late, links_.rank()};
}

// A round may have been decided without this rank, by a coordinator that had lost it. When one that this rank has given up is still open,
// its reports of the next ones wait for their turn: all ranks count the same rounds.
void Coordination::report_mine(std::uint64_t round, const Status& mine) {
    if (round <= decided_) {
        return;
    }
    if (round > decided_ + 1) {
        later_reports_.emplace_back(round, mine);
        return;
    }
    reported_ = true;
    mine_ = mine;
    send_report();
}

void Coordination::send_report() {
    if (is_coordinator()) {
        collect(links_.rank(), decided_ + 1, mine_);
    } else {
        links_.send(coordinator(), encode(MessageKind::kReport, decided_ + 1, mine_, links_.rank()));
    }
}

void Coordination::handle(const Message& message) {
    switch (message.kind) {
        case MessageKind::kReport:
            if (message.version <= decided_) {
                links_.send(message.sender,
                            encode(MessageKind::kVerdict, decided_, last_verdict_.status, last_verdict_.failed_rank));
            } else {
                // Kept also by a rank that does not know yet that it is the coordinator now.
                collect(message.sender, message.version, decode(message));
            }
            return;
        case MessageKind::kVerdict:
            if (message.version == decided_ + 1) {
                const Verdict verdict{decode(message), message.group};
                if (is_coordinator()) {
                    // Of the former coordinator, who may have told only some: now all hear of it.
                    tell_everybody(MessageKind::kVerdict, message.version, verdict.status, verdict.failed_rank);
                }
                deliver(verdict);
            }
            return;
        case MessageKind::kAbort:
            if (message.version == decided_ + 1) {
                abort_locally(decode(message), message.group);
            }
            return;
        case MessageKind::kHeartbeat:
            answer_heartbeat(message);
            return;
        default:
            return;
    }
}

void Coordination::collect(int rank, std::uint64_t round, const Status& status) {
    if (round != decided_ + 1) {
        if (dropped_.take()) {
            log::warning("{} reports round {} while round {} is open", name_of_(rank), round, decided_ + 1);
        }
        return;
    }
    reported_round_[static_cast<std::size_t>(rank)] = round;
    if (!status.ok()) {
        round_failed(status, rank);
    }
    conclude();
}

// The first cause wins; that somebody stopped because of another's failure is no cause.
void Coordination::round_failed(const Status& cause, int failed_rank) {
    const bool better =
        first_cause_.ok() || (first_cause_.code() == StatusCode::kAborted && cause.code() != StatusCode::kAborted);
    if (better) {
        first_cause_ = cause;
        first_failed_rank_ = failed_rank;
    }
    // A cause may have been known before this rank became the coordinator.
    if (is_coordinator() && !std::exchange(told_to_abort_, true)) {
        tell_everybody(MessageKind::kAbort, decided_ + 1, first_cause_, first_failed_rank_);
        abort_locally(first_cause_, first_failed_rank_);
    }
}

void Coordination::conclude() {
    if (!is_coordinator() || !reported_) {
        return;
    }
    for (int rank = 0; rank < links_.size(); ++rank) {
        if (!links_.lost(rank) && reported_round_[static_cast<std::size_t>(rank)] != decided_ + 1) {
            return;
        }
    }
    tell_everybody(MessageKind::kVerdict, decided_ + 1, first_cause_, first_failed_rank_);
    deliver({first_cause_, first_failed_rank_});
}

void Coordination::tell_everybody(MessageKind kind, std::uint64_t round, const Status& status, int failed_rank) {
    const Message message = encode(kind, round, status, failed_rank);
    for (int rank = 0; rank < links_.size(); ++rank) {
        if (rank != links_.rank() && !links_.lost(rank)) {
            links_.send(rank, message);
        }
    }
}

void Coordination::deliver(const Verdict& verdict) {
    if (!verdict.status.ok()) {
        abort_locally(verdict.status, verdict.failed_rank);
        last_failed_rank_ = verdict.failed_rank;
    }
    ++decided_;
    last_verdict_ = verdict;
    reported_ = told_to_abort_ = false;
    abort_cause_ = first_cause_ = ok_status();
    first_failed_rank_ = -1;
    {
        const std::lock_guard lock(mutex_);
        delivered_round_ = decided_;
        delivered_ = verdict;
    }
    decided_changed_.notify_all();
    if (!later_reports_.empty()) {
        const auto [round, mine] = later_reports_.front();
        later_reports_.pop_front();
        report_mine(round, mine);
    }
}

void Coordination::abort_locally(const Status& cause, int failed_rank) {
    if (cause.code() == StatusCode::kPeerLost && cause.peer() && *cause.peer() != links_.rank() &&
        failed_rank == *cause.peer() && *cause.peer() < links_.size()) {
        // Whoever the coordinator says is dead is dead for all: reads from it must not be waited for.
        links_.declare_lost(*cause.peer(), cause);
    }
    if (!abort_cause_.ok()) {
        return;
    }
    abort_cause_ = Status(StatusCode::kAborted, cause.message(), cause.peer().value_or(failed_rank));
    on_abort_(cause);
}

Status Coordination::unreachable(int rank, const Status& connected) const {
    return {StatusCode::kPeerLost, fmt::format("cannot reach {}: {}", name_of_(rank), connected.message()), rank};
}

void Coordination::peer_lost(int rank, const Status& cause) {
    if (over()) {
        return;
    }
    const bool was_coordinator = rank < links_.rank() && rank < coordinator();
    if (was_coordinator && (rank == 0 || is_coordinator())) {
        // With those that are watched from now on no heartbeats have run so far: their silence counts from now.
        watching_since_ = Clock::now();
    }
    if (was_coordinator && !is_coordinator()) {
        const int next = coordinator();
        if (const Status connected = links_.connect(next); !connected.ok()) {
            // Nor will the next one ever hear of this rank: it is lost too, to here. What failed first stays the cause.
            round_failed(cause, rank);
            links_.declare_lost(next, unreachable(next, connected));
            return;
        }
        // It may be gone as well, and so may those after it: with a link to each their silence counts from now too. One that cannot be
        // reached matters when it is the next.
        for (int other = next + 1; other < std::min(next + kSuccessors, links_.rank()); ++other) {
            static_cast<void>(links_.connect(other));
        }
    }
    if (is_coordinator()) {
        std::vector<Status> unreached;
        for (int other = 0; was_coordinator && other < links_.size(); ++other) {
            if (!links_.lost(other)) {
                if (const Status connected = links_.connect(other); !connected.ok()) {
                    unreached.push_back(unreachable(other, connected));
                }
            }
        }
        if (was_coordinator && decided_ > 0) {
            // The former one may have told only some.
            tell_everybody(MessageKind::kVerdict, decided_, last_verdict_.status, last_verdict_.failed_rank);
        }
        round_failed(cause, rank);
        for (const Status& status : unreached) {
            links_.declare_lost(*status.peer(), status);
        }
        if (reported_) {
            send_report();  // to ourselves: it had gone to the former coordinator
        }
        conclude();
        return;
    }
    if (was_coordinator) {
        // If the next one is silent too, because it has not noticed yet or is gone as well, this loss stays the cause.
        round_failed(cause, rank);
        // What the former coordinator may have told only this rank, and what it may not have heard of this rank.
        if (decided_ > 0) {
            links_.send(coordinator(),
                        encode(MessageKind::kVerdict, decided_, last_verdict_.status, last_verdict_.failed_rank));
        }
        if (reported_) {
            send_report();
        }
    }
}

void Coordination::start_heartbeats() {
    watching_since_ = last_beat_ = Clock::now();
    heartbeat_timer_.start(options_.heartbeat_interval);
}

void Coordination::stop_heartbeats() { heartbeat_timer_.cancel(); }

// Once a coordinator was lost, all that may follow it are watched, and not one after the other: a node that fails takes many with it.
bool Coordination::watches(int rank) const {
    const int first = coordinator();
    return first == links_.rank() || rank == first || (first > 0 && rank < links_.rank());
}

// The sender may have become the coordinator without our having noticed, or may not have noticed that it is the coordinator to us.
void Coordination::answer_heartbeat(const Message& message) {
    const bool is_answer = message.slot == 1;
    if (over() || is_answer || watches(message.sender) || !links_.connect(message.sender).ok()) {
        return;
    }
    Message answer;
    answer.kind = MessageKind::kHeartbeat;
    answer.slot = 1;
    links_.send(message.sender, answer);
}

void Coordination::beat() {
    heartbeat_timer_.start(options_.heartbeat_interval);
    const Clock::time_point now = Clock::now();
    // When this very thread did not get to run for long, messages may be waiting unread: judge nobody by that.
    const bool punctual = now - last_beat_ < 2 * options_.heartbeat_interval;
    last_beat_ = now;
    Message message;
    message.kind = MessageKind::kHeartbeat;
    for (int rank = 0; rank < links_.size(); ++rank) {
        if (rank == links_.rank() || !watches(rank) || !links_.connected(rank) || links_.lost(rank)) {
            continue;
        }
        const auto silent = now - std::max(links_.last_heard(rank), watching_since_);
        // A rank that is still in set-up has said nothing yet; that wait has a deadline of its own.
        const bool judged = links_.greeted(rank) || decided_ > 0;
        if (punctual && judged && silent > options_.dead_after) {
            links_.declare_lost(
                rank, Status(StatusCode::kPeerLost,
                             fmt::format("no sign of life for {:.1f} s", std::chrono::duration<double>(silent).count()),
                             rank));
            continue;
        }
        links_.send(rank, message);
    }
}

std::string Coordination::missing() const {
    if (!is_coordinator()) {
        return fmt::format("{} (the coordinator)", name_of_(coordinator()));
    }
    std::string names;
    for (int rank = 0; rank < links_.size(); ++rank) {
        if (!links_.lost(rank) && reported_round_[static_cast<std::size_t>(rank)] != decided_ + 1) {
            names += (names.empty() ? "" : ", ") + name_of_(rank);
        }
    }
    return names.empty() ? "the event loop" : names;
}

}  // namespace sluice

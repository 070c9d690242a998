#include "runtime/exchange/session.h"

#include "runtime/exchange/setup_codec.h"
#include "runtime/services/latch.h"
#include "runtime/services/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <sched.h>
#include <span>
#include <thread>
#include <unistd.h>
#include <utility>

namespace sluice {
namespace {

// After a failure the ranks alive agree on the end as usual, but nobody may be kept long by a rank that does not come.
constexpr auto kFailedEndLimit = std::chrono::seconds(1);
// Part of a note in one message: fits, with its header, the smallest message limit of any transport.
constexpr std::size_t kNotePart = 2048;
// What comes after the part that goes beyond it is dropped.
constexpr std::size_t kLongestNote = 64 << 20;
// Ranks that an error about many names.
constexpr int kMostNamed = 16;

// mpirun binds a rank to one core when there are few ranks, and with it all threads of the process: they take turns then.
void say_if_bound(int copy_threads) {
    cpu_set_t allowed;
    if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return;
    }
    const int cores = CPU_COUNT(&allowed);
    const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
    if (cores < copy_threads && cores < online) {
        log::info(
            "bound to {} of {} cores, but {} copy threads: start with `mpirun --bind-to none`, or set "
            "SLUICE_COPY_THREADS={}",
            cores, online, copy_threads, cores);
    }
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(const Settings& settings, const TransportFactory& open_transport,
                                               Device* device) {
    say_if_bound(settings.copy_threads);
    if (device != nullptr && device->lanes() < settings.copy_threads) {
        return invalid_argument(
            fmt::format("{} copy threads, but the device was opened with {} lanes; open it with one for each, or set "
                        "SLUICE_COPY_THREADS={}",
                        settings.copy_threads, device->lanes(), device->lanes()));
    }
    std::unique_ptr<Session> session(new Session(settings));
    session->device_ = device;
    session->loop_ = std::make_unique<EventLoop>("sluice-net");
    session->copy_threads_ = std::make_unique<CopyThreads>(*session->loop_, "sluice-copy", settings.copy_threads,
                                                           settings.copy_at_once_bytes);
    Result<std::unique_ptr<transport::Transport>> opened = internal_error("not opened");
    session->loop_->run_and_wait([&] {
        // UCX takes the device that is current on its thread.
        const Status selected = device != nullptr ? device->use_on_this_thread() : ok_status();
        opened = selected.ok() ? open_transport(*session->loop_) : selected;
    });
    SLUICE_ASSIGN_OR_RETURN(session->transport_, std::move(opened));
    return session;
}

Session::~Session() {
    close(/*graceful=*/false, [] {});
    loop_->run_and_wait([this] {
        coordination_.reset();
        links_.reset();
        transport_.reset();
    });
}

void Session::record_trace(std::size_t most_events) {
    trace_ = std::make_unique<TraceRecorder>(most_events, settings_.copy_threads);
}

Result<std::unique_ptr<transport::MemoryRegion>> Session::register_memory(std::span<std::byte> memory, MemoryKind kind,
                                                                          transport::Access access) {
    Result<std::unique_ptr<transport::MemoryRegion>> region = internal_error("not registered");
    loop_->run_and_wait([&] { region = transport_->register_memory(memory, kind, access); });
    ++registrations_;
    return region;
}

std::int64_t Session::pool_growth() {
    std::int64_t growth = 0;
    loop_->run_and_wait([&] { growth = links_->pool_growth(); });
    return growth;
}

std::int64_t Session::messages_sent() {
    std::int64_t messages = 0;
    loop_->run_and_wait([&] { messages = links_->messages_sent(); });
    return messages;
}

bool Session::is_coordinator() {
    bool mine = false;
    loop_->run_and_wait([&] { mine = coordination_->is_coordinator(); });
    return mine;
}

int Session::last_failed_rank() {
    int rank = -1;
    loop_->run_and_wait([&] { rank = coordination_->last_failed_rank(); });
    return rank;
}

std::string Session::name_of(int world_rank) const {
    const auto in = [&](const std::vector<int>& side) {
        const auto at = std::find(side.begin(), side.end(), world_rank);
        return at == side.end() ? -1 : static_cast<int>(at - side.begin());
    };
    if (const int trainer = in(plan_.trainers); trainer >= 0) {
        return fmt::format("trainer {}", trainer);
    }
    if (const int worker = in(plan_.workers); worker >= 0) {
        return fmt::format("worker {}", worker);
    }
    return fmt::format("rank {}", world_rank);
}

Status Session::exchange_cards(Bootstrap& bootstrap, const RankPlan& plan, Result<MemoryCard> mine, Deadline deadline) {
    plan_ = plan;
    if (mine.ok() && device_ != nullptr) {
        mine->device_uuid = device_->uuid();
    }
    std::vector<std::byte> address;
    loop_->run_and_wait([&] { address = transport_->address(); });
    SLUICE_ASSIGN_OR_RETURN(const auto blobs, bootstrap.all_gather(encode_card(address, mine), deadline));
    std::vector<std::vector<std::byte>> addresses;
    for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
        auto card = decode_card(blobs[rank]);
        if (!card.ok()) {
            return card.status().with_context(name_of(static_cast<int>(rank)));
        }
        addresses.push_back(std::move(card->address));
        cards_.push_back(std::move(card->memory));
    }
    loop_->run_and_wait([&] {
        notes_.assign(addresses.size(), {});
        losses_.assign(addresses.size(), ok_status());
        links_ = std::make_unique<Links>(*loop_, *transport_, bootstrap.rank(), plan.session, std::move(addresses),
                                         Links::Events{[this](const Message& message) { dispatch(message); },
                                                       [this](int peer, const Status& cause) { lost(peer, cause); }});
        coordination_ = std::make_unique<Coordination>(
            *loop_, *links_, [this](int rank) { return name_of(rank); },
            [this](const Status& cause) { aborted(cause); },
            Coordination::Options{settings_.heartbeat_interval, settings_.heartbeat_dead_after});
    });
    // A transport hands out no messages before there are links: a hello that came earlier would be lost.
    return bootstrap.barrier(deadline);
}

Status Session::connect(const Result<std::vector<int>>& peers, Deadline deadline) {
    const Status connected = open_links(peers.ok() ? *peers : std::vector<int>(), deadline);
    return peers.ok() ? connected : peers.status();
}

Status Session::open_links(std::vector<int> peers, Deadline deadline) {
    Status failed;
    loop_->run_and_wait([&] {
        if (links_->rank() == 0) {
            for (int rank = 1; rank < links_->size(); ++rank) {
                peers.push_back(rank);
            }
        } else {
            peers.push_back(0);
        }
        for (const int peer : peers) {
            if (Status status = links_->connect(peer); !status.ok() && failed.ok()) {
                failed = status.with_context(fmt::format("cannot reach {}", name_of(peer)));
            }
        }
        // From now on, not from the end of this wait: others may be through with theirs and listen for us.
        coordination_->start_heartbeats();
    });
    // Set-up only: a peer says hello when it has come as far as this, which no event of ours announces.
    while (true) {
        const bool late = deadline.passed();
        int missing = 0;
        std::string names;
        bool heard = false;
        loop_->run_and_wait([&] {
            for (const int peer : peers) {
                if (peer != links_->rank() && !links_->greeted(peer)) {
                    ++missing;
                    if (late && missing <= kMostNamed) {
                        names += (names.empty() ? "" : ", ") + name_of(peer);
                    }
                    if (failed.ok()) {
                        failed = losses_[static_cast<std::size_t>(peer)];
                    }
                }
            }
            if (failed.ok()) {
                failed = coordination_->abort_cause();
            }
            // The coordinator tells the others of a failure, which it can once it has opened its own links.
            heard = links_->rank() == 0 || links_->greeted(0) || links_->lost(0) || !links_->connected(0);
        });
        if (!failed.ok() && (heard || late)) {
            return failed;
        }
        if (missing == 0) {
            return ok_status();
        }
        if (late) {
            const std::string more = missing > kMostNamed ? fmt::format(" and {} more", missing - kMostNamed) : "";
            return deadline_exceeded(
                fmt::format("no link in time with {}{}; check UCX_TLS and UCX_NET_DEVICES on both sides", names, more));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

Status Session::end_set_up(Bootstrap& bootstrap, const Status& mine, Deadline deadline) {
    Status agreed = coordination_->agree("set-up", mine, deadline).status;
    // Also where the first cause was another, and somebody was lost after it.
    bool lost = false;
    loop_->run_and_wait([&] {
        for (int rank = 0; rank < links_->size(); ++rank) {
            lost = lost || links_->lost(rank);
        }
    });
    if (!agreed.ok() &&
        (lost || agreed.code() == StatusCode::kPeerLost || agreed.code() == StatusCode::kDeadlineExceeded)) {
        bootstrap.abandon();
    }
    return agreed;
}

void Session::set_flow(FlowId flow, Server* server, PullEngine* engine) {
    loop_->run_and_wait([&] { flows_[static_cast<std::size_t>(flow)] = {server, engine}; });
}

void Session::set_abort_handler(std::function<void(const Status&)> handler) {
    loop_->run_and_wait([&] { abort_handler_ = std::move(handler); });
}

void Session::dispatch(const Message& message) {
    const Flow& flow = flows_[static_cast<std::size_t>(message.flow)];
    switch (message.kind) {
        case MessageKind::kBegin:
        case MessageKind::kSlotRead:
        case MessageKind::kRelease:
        case MessageKind::kOpen:
            if (flow.server != nullptr) {
                flow.server->handle(message);
            }
            return;
        case MessageKind::kHashes:
        case MessageKind::kPublish:
        case MessageKind::kPacked:
            if (flow.engine != nullptr) {
                flow.engine->handle(message);
            }
            return;
        case MessageKind::kReport:
        case MessageKind::kVerdict:
        case MessageKind::kAbort:
        case MessageKind::kHeartbeat:
            coordination_->handle(message);
            return;
        case MessageKind::kNote:
            take_note(message);
            return;
        case MessageKind::kHello:
            return;  // Links has taken note
    }
}

void Session::lost(int peer, const Status& cause) {
    // What the coordinator has told us names the peer already; what our own transport found does not.
    const std::string lost = fmt::format("{} is lost", name_of(peer));
    const Status named(
        StatusCode::kPeerLost,
        cause.message().starts_with(lost) ? cause.message() : fmt::format("{}: {}", lost, cause.message()), peer);
    losses_[static_cast<std::size_t>(peer)] = named;
    if (!ending_) {
        log::warning("{}", named.message());
    }
    for (const Flow& flow : flows_) {
        if (flow.server != nullptr) {
            flow.server->peer_lost(peer);
        }
        if (flow.engine != nullptr) {
            flow.engine->peer_lost(peer, named);
        }
    }
    coordination_->peer_lost(peer, named);
}

void Session::aborted(const Status& cause) {
    for (const Flow& flow : flows_) {
        if (flow.engine != nullptr) {
            flow.engine->fail(cause);
        }
    }
    if (abort_handler_) {
        abort_handler_(cause);
    }
}

void Session::take_note(const Message& message) {
    std::string& note = notes_[static_cast<std::size_t>(message.sender)];
    if (note.size() > kLongestNote) {
        return;
    }
    note.append(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
    if (note.size() > kLongestNote) {
        log::warning("cut the note of {}: it is longer than {} bytes", name_of(message.sender), kLongestNote);
    }
}

SessionNotes Session::gather_notes(const std::string& mine, Deadline deadline) {
    loop_->run_and_wait([&] {
        Message part;
        part.kind = MessageKind::kNote;
        const std::size_t most = std::min(kNotePart, links_->max_payload_bytes());
        for (std::size_t begin = 0; begin < mine.size(); begin += most) {
            part.payload = std::as_bytes(std::span(mine).subspan(begin, std::min(most, mine.size() - begin)));
            links_->send(coordination_->coordinator(), part);
        }
    });
    // Messages of a link arrive in order, so whoever has reported has sent its note.
    SessionNotes notes;
    notes.status = coordination_->agree("reports", ok_status(), deadline).status;
    loop_->run_and_wait([&] {
        if (coordination_->is_coordinator()) {
            notes.by_rank = notes_;
            notes.by_rank[static_cast<std::size_t>(links_->rank())] =
                mine;  // it may have gone to a coordinator that is lost
        }
        notes_.assign(notes_.size(), {});
    });
    return notes;
}

void Session::close(bool graceful, const std::function<void()>& before_close) {
    if (closed_ || links_ == nullptr) {
        return;
    }
    closed_ = true;
    // From here on others may close their side before we do; that is no loss. All agree first, so that nobody who is still at
    // work sees links go.
    loop_->run_and_wait([this] {
        ending_ = true;
        coordination_->expect_last_round();
    });
    const Deadline limit = Deadline::after(graceful ? settings_.connect_timeout : kFailedEndLimit);
    graceful = coordination_->agree("end of the session", ok_status(), limit).status.ok() && graceful;

    Latch closed(1);
    loop_->run_and_wait([&] {
        coordination_->stop_heartbeats();
        before_close();
        links_->close_all(!graceful, [&] { closed.count_down(); });
    });
    closed.wait();
}

}  // namespace sluice

#include "runtime/exchange/links.h"

#include "runtime/services/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace sluice {
namespace {

// Enough for every rank's messages of some groups; small, since a node holds a payload buffer of kPayloadBytes.
constexpr int kFirstNodes = 128;
constexpr std::size_t kPayloadBytes = 4096;

}  // namespace

/// A message on its way: keeps its bytes until the transport has let go of them.
class Links::SendNode : public transport::Completion, public LoopTask {
public:
    explicit SendNode(Links& links) : links_(links) { payload.reserve(kPayloadBytes); }

    void complete(const Status& status) override {
        if (!status.ok() && !links_.closing_) {
            links_.mark_lost(peer, status);
        }
        links_.give_back(*this);
    }
    // Delivery to oneself.
    void run() override {
        links_.receive(header, payload);
        links_.give_back(*this);
    }

    MessageHeader header{};
    std::vector<std::byte> payload;
    int peer = -1;
    SendNode* next_free = nullptr;

private:
    Links& links_;
};

class Links::CloseNode : public transport::Completion {
public:
    CloseNode(Links& links, int peer) : links_(links), peer_(peer) {}
    void complete(const Status& status) override;

private:
    Links& links_;
    int peer_;
};

struct Links::Peer {
    Peer(Links& links, int rank) : close_node(links, rank) {}
    std::unique_ptr<transport::Endpoint> endpoint;
    CloseNode close_node;
    bool greeted = false;
    bool lost = false;
    bool closing = false;
    EventLoop::Clock::time_point last_heard{};
};

void Links::CloseNode::complete(const Status& /*status*/) {
    links_.peers_[static_cast<std::size_t>(peer_)]->endpoint.reset();
    --links_.open_endpoints_;
    links_.close_finished();
}

Links::Links(EventLoop& loop, transport::Transport& transport, int rank, std::uint64_t session,
             std::vector<std::vector<std::byte>> addresses, Events events)
    : loop_(loop),
      transport_(transport),
      rank_(rank),
      session_(session),
      addresses_(std::move(addresses)),
      events_(std::move(events)) {
    for (int peer = 0; peer < static_cast<int>(addresses_.size()); ++peer) {
        peers_.push_back(std::make_unique<Peer>(*this, peer));
    }
    peers_[static_cast<std::size_t>(rank_)]->greeted = true;
    for (int i = 0; i < kFirstNodes; ++i) {
        nodes_.push_back(std::make_unique<SendNode>(*this));
        nodes_.back()->next_free = std::exchange(free_nodes_, nodes_.back().get());
    }
    transport_.set_message_handler(
        [this](std::span<const std::byte> header, std::span<const std::byte> payload) { receive(header, payload); });
}

Links::~Links() {
    assert(open_endpoints_ == 0);
    transport_.set_message_handler([](std::span<const std::byte>, std::span<const std::byte>) {});
}

Status Links::connect(int peer) {
    assert(loop_.on_loop_thread());
    Peer& p = *peers_[static_cast<std::size_t>(peer)];
    if (peer == rank_ || p.endpoint != nullptr || p.lost || closing_) {
        return ok_status();
    }
    SLUICE_ASSIGN_OR_RETURN(p.endpoint,
                            transport_.connect(addresses_[static_cast<std::size_t>(peer)], peer,
                                               [this, peer](const Status& cause) { mark_lost(peer, cause); }));
    ++open_endpoints_;
    p.last_heard = EventLoop::Clock::now();
    Message hello;
    hello.kind = MessageKind::kHello;
    send(peer, hello);
    return ok_status();
}

bool Links::greeted(int peer) const {
    const Peer& p = *peers_[static_cast<std::size_t>(peer)];
    return p.greeted && !p.lost;
}
bool Links::lost(int peer) const { return peers_[static_cast<std::size_t>(peer)]->lost; }
bool Links::connected(int peer) const { return peers_[static_cast<std::size_t>(peer)]->endpoint != nullptr; }
EventLoop::Clock::time_point Links::last_heard(int peer) const {
    return peers_[static_cast<std::size_t>(peer)]->last_heard;
}

transport::Endpoint* Links::endpoint(int peer) const {
    const Peer& p = *peers_[static_cast<std::size_t>(peer)];
    return p.lost || p.closing ? nullptr : p.endpoint.get();
}

void Links::send(int peer, const Message& message) {
    assert(loop_.on_loop_thread());
    transport::Endpoint* to = endpoint(peer);
    if (peer != rank_ && to == nullptr) {
        return;
    }
    SendNode& node = take_node();
    Message stamped = message;
    stamped.sender = rank_;
    if (message.payload.size() > node.payload.capacity()) {
        ++pool_growth_;
    }
    node.payload.assign(message.payload.begin(), message.payload.end());
    stamped.payload = node.payload;
    encode_message(stamped, session_, node.header);
    node.peer = peer;
    ++messages_sent_;
    if (peer == rank_) {
        loop_.post(node);
    } else {
        to->send(node.header, node.payload, node);
    }
}

void Links::receive(std::span<const std::byte> header, std::span<const std::byte> payload) {
    auto message = decode_message(header, payload, session_);
    Status refused = message.status();
    if (refused.ok() && message->sender >= size()) {
        refused = invalid_argument(fmt::format("message from rank {}, but there are {}", message->sender, size()));
    }
    if (!refused.ok()) {
        if (dropped_.take()) {
            log::warning("dropped a message of {} bytes: {}", header.size() + payload.size(), refused.message());
        }
        return;
    }
    Peer& from = *peers_[static_cast<std::size_t>(message->sender)];
    if (from.lost) {
        return;  // it was on its way when its sender was declared dead
    }
    from.last_heard = EventLoop::Clock::now();
    if (message->kind == MessageKind::kHello) {
        from.greeted = true;
    }
    events_.on_message(*message);
}

Links::SendNode& Links::take_node() {
    if (free_nodes_ == nullptr) {
        ++pool_growth_;
        nodes_.push_back(std::make_unique<SendNode>(*this));
        nodes_.back()->next_free = std::exchange(free_nodes_, nodes_.back().get());
    }
    ++nodes_in_flight_;
    SendNode& node = *free_nodes_;
    free_nodes_ = node.next_free;
    return node;
}

void Links::give_back(SendNode& node) {
    node.next_free = std::exchange(free_nodes_, &node);
    --nodes_in_flight_;
    close_finished();
}

void Links::mark_lost(int peer, const Status& cause) {
    Peer& p = *peers_[static_cast<std::size_t>(peer)];
    if (p.lost || closing_) {
        return;
    }
    p.lost = true;
    if (p.endpoint != nullptr && !p.closing) {
        p.closing = true;
        p.endpoint->close(/*force=*/true, p.close_node);
    }
    events_.on_lost(peer, cause);
}

void Links::declare_lost(int peer, const Status& cause) { mark_lost(peer, cause); }

void Links::close_all(bool force, std::function<void()> closed) {
    closing_ = true;
    closed_ = std::move(closed);
    for (auto& peer : peers_) {
        if (peer->endpoint != nullptr && !peer->closing) {
            peer->closing = true;
            peer->endpoint->close(force, peer->close_node);
        }
    }
    close_finished();
}

void Links::close_finished() {
    if (closing_ && open_endpoints_ == 0 && nodes_in_flight_ == 0 && closed_) {
        std::exchange(closed_, nullptr)();
    }
}

}  // namespace sluice

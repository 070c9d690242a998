#pragma once

#include "runtime/base/status.h"
#include "runtime/exchange/line_limit.h"
#include "runtime/exchange/message.h"
#include "runtime/services/event_loop.h"
#include "transport/transport.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace sluice {

/// The links of one rank to the others: endpoints by world rank, message sending from a pool, liveness.
/// Everything runs on the event loop.
class Links {
public:
    struct Events {
        /// A message that decode_message accepted, from a rank of this session with whom there is a link.
        std::function<void(const Message&)> on_message;
        /// Told once per peer: its endpoint failed, or it was declared dead. Nothing is sent to it after that.
        std::function<void(int peer, const Status& cause)> on_lost;
    };

    /// `addresses` holds the transport address of every world rank; `session` and the own `rank` are put on each message.
    Links(EventLoop& loop, transport::Transport& transport, int rank, std::uint64_t session,
          std::vector<std::vector<std::byte>> addresses, Events events);
    /// All links must have been closed.
    ~Links();
    Links(const Links&) = delete;
    Links& operator=(const Links&) = delete;

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int size() const { return static_cast<int>(peers_.size()); }

    /// Opens a link (does nothing when there is one) and says hello on it. The peer may not yet have opened its side.
    Status connect(int peer);
    /// The peer has said hello and is not lost.
    [[nodiscard]] bool greeted(int peer) const;
    [[nodiscard]] bool lost(int peer) const;
    [[nodiscard]] bool connected(int peer) const;
    /// When something last came from the peer.
    [[nodiscard]] EventLoop::Clock::time_point last_heard(int peer) const;
    /// Null when there is no link or the peer is lost.
    [[nodiscard]] transport::Endpoint* endpoint(int peer) const;

    /// Sends a copy of `message` (its sender field is set here). To oneself it is delivered by a task of the loop; to a lost peer,
    /// or without a link, it is dropped: the sync fails by on_lost.
    void send(int peer, const Message& message);
    /// The most bytes of a message's payload; some hundred on networks with small packets.
    [[nodiscard]] std::size_t max_payload_bytes() const { return transport_.max_message_bytes() - kMessageHeaderBytes; }

    /// Declares a peer dead (missing heartbeats): its endpoint is closed by force, so that everything in flight fails.
    void declare_lost(int peer, const Status& cause);

    /// Closes all links and calls `closed` when nothing is in flight any more. `force` as for endpoints.
    void close_all(bool force, std::function<void()> closed);

    /// How often the pool of messages in flight had to grow beyond its first size.
    [[nodiscard]] std::int64_t pool_growth() const { return pool_growth_; }
    [[nodiscard]] std::int64_t messages_sent() const { return messages_sent_; }

private:
    struct Peer;
    class SendNode;
    class CloseNode;

    void receive(std::span<const std::byte> header, std::span<const std::byte> payload);
    SendNode& take_node();
    void give_back(SendNode& node);
    void mark_lost(int peer, const Status& cause);
    void close_finished();

    EventLoop& loop_;
    transport::Transport& transport_;
    int rank_;
    std::uint64_t session_;
    std::vector<std::vector<std::byte>> addresses_;
    Events events_;
    std::vector<std::unique_ptr<Peer>> peers_;
    std::vector<std::unique_ptr<SendNode>> nodes_;
    SendNode* free_nodes_ = nullptr;
    std::int64_t pool_growth_ = 0;
    std::int64_t messages_sent_ = 0;
    LineLimit dropped_;
    int open_endpoints_ = 0;
    int nodes_in_flight_ = 0;
    bool closing_ = false;
    std::function<void()> closed_;
};

}  // namespace sluice

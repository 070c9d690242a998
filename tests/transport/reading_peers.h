#pragma once

#include "tests/support/forked_peers.h"
#include "tests/transport/network.h"
#include "transport/ucx/ucx_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

/// Two forked peers that read from each other, for tests of what happens when one of them, or what is between them, fails.
namespace sluice::test {

inline constexpr std::size_t kPiece = 1 << 20;
inline constexpr std::size_t kPieces = 8;

/// Made once, before any fork: children copy it, which is much faster than making it.
inline const std::vector<std::byte>& content() {
    static const std::vector<std::byte> bytes = pattern_bytes(1, kPiece * kPieces);
    return bytes;
}

/// A transport with readable memory, connected to the other peer.
struct Node {
    Node(PeerChannel& channel, Network network) : on_node(channel.rank()), loop("node"), memory(content()) {
        Blob mine;
        loop.run_and_wait([&] {
            auto opened = transport::open_ucx_transport(loop, ucx_options(network));
            ASSERT_TRUE(opened.ok()) << opened.status().message();
            transport = std::move(opened).value();
            auto readable = transport->register_memory(memory, MemoryKind::kHost, transport::Access::kRemoteRead);
            ASSERT_TRUE(readable.ok()) << readable.status().message();
            source = std::move(readable).value();
            auto writable = transport->register_memory(landing, MemoryKind::kHost, transport::Access::kLocal);
            ASSERT_TRUE(writable.ok()) << writable.status().message();
            target = std::move(writable).value();
            transport->set_message_handler([this](auto, auto) { messages.fetch_add(1); });
        });
        // Memory lies elsewhere in each process: address, key and its place go around.
        const auto addresses = channel.all_gather([&] {
            loop.run_and_wait([&] { mine = transport->address(); });
            return mine;
        }());
        const auto keys = channel.all_gather(source->packed_key());
        const std::uint64_t here = reinterpret_cast<std::uint64_t>(memory.data());
        Blob place(sizeof(here));
        std::memcpy(place.data(), &here, sizeof(here));
        const auto places = channel.all_gather(place);
        const std::size_t other = channel.rank() == 0 ? 1 : 0;
        std::memcpy(&remote, places[other]->data(), sizeof(remote));
        loop.run_and_wait([&] {
            auto connected = transport->connect(*addresses[other], static_cast<int>(other),
                                                [this](const Status&) { lost.fetch_add(1); });
            ASSERT_TRUE(connected.ok()) << connected.status().message();
            endpoint = std::move(connected).value();
            auto unpacked = endpoint->unpack_key(*keys[other]);
            ASSERT_TRUE(unpacked.ok()) << unpacked.status().message();
            key = std::move(unpacked).value();
        });
        // Both sides have read from each other before anything happens.
        CountedCompletion first;
        get(0, first);
        EXPECT_TRUE(first.wait_for());
        EXPECT_TRUE(first.status().ok()) << first.status().message();
        channel.barrier();
    }

    ~Node() {
        CountedCompletion closed;
        loop.run_and_wait([&] { endpoint->close(true, closed); });
        EXPECT_TRUE(closed.wait_for());
        loop.run_and_wait([&] {
            key.reset();
            endpoint.reset();
            source.reset();
            target.reset();
            transport.reset();
        });
    }

    // Piece i, from any thread.
    void get(std::size_t i, transport::Completion& completion) {
        loop.run_and_wait([&] { get_on_loop(i, completion); });
    }
    void get_on_loop(std::size_t i, transport::Completion& completion) {
        endpoint->get(landing.data() + i * kPiece, kPiece, *target, remote + i * kPiece, *key, completion);
    }

    // Threads stay on the node on which they are made.
    struct OnNode {
        explicit OnNode(int node) { enter_node(node); }
    } on_node;
    EventLoop loop;
    std::vector<std::byte> memory;
    std::vector<std::byte> landing = std::vector<std::byte>(kPiece * kPieces);
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::MemoryRegion> source;
    std::unique_ptr<transport::MemoryRegion> target;
    std::unique_ptr<transport::Endpoint> endpoint;
    std::unique_ptr<transport::RemoteKey> key;
    std::uint64_t remote = 0;
    std::atomic<int> messages{0};
    std::atomic<int> lost{0};
};

/// Reads pieces for ever, a window at a time, and counts how each one ends. Starts the next from the completion. A get that succeeds
/// has brought every byte: pieces are wiped before they are read again.
struct Reading {
    struct Slot final : transport::Completion {
        void complete(const Status& status) override {
            ASSERT_TRUE(in_flight) << "told twice";
            in_flight = false;
            if (status.ok()) {
                ++reading->succeeded;
                EXPECT_EQ(std::memcmp(piece(), content().data() + index * kPiece, kPiece), 0)
                    << "a get of piece " << index << " succeeded without its bytes";
            } else {
                EXPECT_EQ(status.peer(), reading->peer);
                ++reading->failed;
                reading->first_failure = std::min(reading->first_failure, std::chrono::steady_clock::now());
                reading->stopped = true;
            }
            if (!reading->stopped) {
                start();
            } else if (reading->in_flight() == 0) {
                reading->ended.complete(ok_status());
            }
        }
        void start() {
            std::memset(piece(), 0, kPiece);
            in_flight = true;
            ++reading->started;
            reading->node->get_on_loop(index, *this);
        }
        [[nodiscard]] std::byte* piece() const { return reading->node->landing.data() + index * kPiece; }
        Reading* reading = nullptr;
        std::size_t index = 0;
        bool in_flight = false;
    };

    Reading(Node& reading_node, int from) : node(&reading_node), peer(from) {
        node->loop.run_and_wait([&] {
            for (std::size_t i = 0; i < slots.size(); ++i) {
                slots[i].reading = this;
                slots[i].index = i;
                slots[i].start();
            }
        });
    }
    [[nodiscard]] std::ptrdiff_t in_flight() const {
        return std::ranges::count_if(slots, [](const Slot& slot) { return slot.in_flight; });
    }

    Node* node;
    int peer;
    std::array<Slot, 8> slots;
    int started = 0;
    int succeeded = 0;
    int failed = 0;
    bool stopped = false;
    std::chrono::steady_clock::time_point first_failure = std::chrono::steady_clock::time_point::max();
    CountedCompletion ended;
};

}  // namespace sluice::test

#pragma once

#include "runtime/exchange/coordination.h"
#include "runtime/exchange/links.h"
#include "runtime/services/event_loop.h"
#include "runtime/services/latch.h"
#include "transport/fake/fake_transport.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Ranks with links and coordination over the in-process network, without anything above.
namespace sluice::test {

struct FakeRank {
    EventLoop loop{"rank"};
    transport::FakeId id = 0;
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<Links> links;
    std::unique_ptr<Coordination> coordination;
    /// On the loop; what coordination does not want.
    std::function<void(const Message&)> on_message;
    std::atomic<int> aborts{0};
    std::atomic<int> losses{0};
};

class FakeRanks {
public:
    static constexpr std::uint64_t kSession = 77;

    /// Every rank is linked with every other one, unless `linked` is false. Connecting to the `unreachable` ones fails.
    explicit FakeRanks(int count, Coordination::Options options = {}, bool linked = true,
                       const std::vector<int>& unreachable = {}) {
        std::vector<std::vector<std::byte>> addresses;
        for (int i = 0; i < count; ++i) {
            FakeRank& rank = *ranks_.emplace_back(std::make_unique<FakeRank>());
            rank.loop.run_and_wait([&] {
                auto opened = fabric_.open(rank.loop);
                rank.id = opened.id;
                rank.transport = std::move(opened.transport);
                addresses.push_back(rank.transport->address());
            });
        }
        for (const int rank : unreachable) {
            addresses[static_cast<std::size_t>(rank)] = {std::byte{0}};
        }
        for (int i = 0; i < count; ++i) {
            FakeRank& rank = at(i);
            rank.loop.run_and_wait([&] {
                rank.links = std::make_unique<Links>(
                    rank.loop, *rank.transport, i, kSession, addresses,
                    Links::Events{[&rank](const Message& message) { dispatch(rank, message); },
                                  [&rank](int peer, const Status& cause) {
                                      ++rank.losses;
                                      rank.coordination->peer_lost(
                                          peer,
                                          Status(StatusCode::kPeerLost,
                                                 fmt::format("rank {} is lost: {}", peer, cause.message()), peer));
                                  }});
                rank.coordination = std::make_unique<Coordination>(
                    rank.loop, *rank.links, [](int r) { return fmt::format("rank {}", r); },
                    [&rank](const Status&) { ++rank.aborts; }, options);
            });
        }
        for (int i = 0; linked && i < count; ++i) {
            at(i).loop.run_and_wait([&] {
                for (int peer = 0; peer < count; ++peer) {
                    EXPECT_TRUE(at(i).links->connect(peer).ok());
                }
            });
        }
    }

    ~FakeRanks() {
        for (int i = 0; i < size(); ++i) {
            close(i);
        }
        for (auto& rank : ranks_) {
            rank->loop.run_and_wait([&] {
                rank->coordination.reset();
                rank->links.reset();
                rank->transport.reset();
            });
        }
    }

    void close(int i) {
        Latch closed(1);
        at(i).loop.run_and_wait([&] {
            at(i).coordination->stop_heartbeats();
            at(i).links->close_all(/*force=*/true, [&] { closed.count_down(); });
        });
        closed.wait();
    }

    [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
    [[nodiscard]] FakeRank& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
    [[nodiscard]] transport::FakeFabric& fabric() { return fabric_; }
    /// Returns when everything that was sent before has been handled, here and there and back again.
    void settle() {
        for (int round = 0; round < 4; ++round) {
            for (auto& rank : ranks_) {
                rank->loop.run_and_wait([] {});
            }
        }
    }

private:
    static void dispatch(FakeRank& rank, const Message& message) {
        if (rank.on_message) {
            rank.on_message(message);
        }
        if (message.kind == MessageKind::kReport || message.kind == MessageKind::kVerdict ||
            message.kind == MessageKind::kAbort || message.kind == MessageKind::kHeartbeat) {
            rank.coordination->handle(message);
        }
    }

    transport::FakeFabric fabric_;
    std::vector<std::unique_ptr<FakeRank>> ranks_;
};

}  // namespace sluice::test

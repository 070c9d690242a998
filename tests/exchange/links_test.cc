#include "runtime/exchange/links.h"

#include "tests/exchange/fake_ranks.h"
#include "tests/support/log_guard.h"
#include "tests/transport/network.h"

#include <gtest/gtest.h>

#include <random>
#include <semaphore>
#include <string>
#include <vector>

namespace sluice::test {
namespace {

struct Seen {
    Message message;
    std::vector<std::byte> payload;
};

// Notes that come to a rank, kept on its loop.
struct Inbox {
    explicit Inbox(FakeRank& rank) {
        rank.loop.run_and_wait([&] {
            rank.on_message = [this](const Message& message) {
                if (message.kind == MessageKind::kNote) {
                    seen.push_back({message, {message.payload.begin(), message.payload.end()}});
                    came.release();
                }
            };
        });
    }
    void wait(int count) {
        for (int i = 0; i < count; ++i) {
            ASSERT_TRUE(came.try_acquire_for(kPatience)) << "waited for message " << i + 1 << " of " << count;
        }
    }
    std::vector<Seen> seen;
    std::counting_semaphore<> came{0};
};

void send_note(FakeRank& rank, int to, std::uint64_t version, std::span<const std::byte> payload = {}) {
    rank.loop.run_and_wait([&] {
        Message message;
        message.kind = MessageKind::kNote;
        message.sender = 99;  // not ours to say
        message.version = version;
        message.payload = payload;
        rank.links->send(to, message);
    });
}

TEST(LinksTest, MessagesArriveInOrderWithSenderAndPayload) {
    FakeRanks ranks(2);
    Inbox inbox(ranks.at(1));
    const auto payload = pattern_bytes(5, 3000);
    for (std::uint64_t i = 0; i < 20; ++i) {
        send_note(ranks.at(0), 1, i, std::span(payload).first(i * 150));
    }
    inbox.wait(20);
    for (std::size_t i = 0; i < 20; ++i) {
        EXPECT_EQ(inbox.seen[i].message.version, i);
        EXPECT_EQ(inbox.seen[i].message.sender, 0);
        EXPECT_TRUE(std::ranges::equal(inbox.seen[i].payload, std::span(payload).first(i * 150)));
    }
}

TEST(LinksTest, WhatOneSendsToOneselfComesLaterAndWhole) {
    FakeRanks ranks(1);
    Inbox inbox(ranks.at(0));
    const auto payload = pattern_bytes(6, 500);
    std::size_t seen_inside = 1;
    ranks.at(0).loop.run_and_wait([&] {
        Message message;
        message.kind = MessageKind::kNote;
        message.payload = payload;
        ranks.at(0).links->send(0, message);
        seen_inside = inbox.seen.size();
    });
    EXPECT_EQ(seen_inside, 0u) << "delivered inside send()";
    inbox.wait(1);
    EXPECT_TRUE(std::ranges::equal(inbox.seen[0].payload, payload));
}

TEST(LinksTest, WithoutALinkNothingIsSent) {
    FakeRanks ranks(2, {}, /*linked=*/false);
    Inbox inbox(ranks.at(1));
    send_note(ranks.at(0), 1, 1);
    ranks.at(0).loop.run_and_wait([&] {
        EXPECT_FALSE(ranks.at(0).links->connected(1));
        EXPECT_EQ(ranks.at(0).links->messages_sent(), 0);
        EXPECT_TRUE(ranks.at(0).links->connect(1).ok());
    });
    send_note(ranks.at(0), 1, 2);
    inbox.wait(1);
    EXPECT_EQ(inbox.seen[0].message.version, 2u);
}

TEST(LinksTest, APeerThatDiesIsToldOnceAndNothingIsSentToIt) {
    FakeRanks ranks(3);
    ranks.fabric().kill(ranks.at(2).id);
    while (ranks.at(0).losses == 0 || ranks.at(1).losses == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ranks.at(0).loop.run_and_wait([&] {
        Links& links = *ranks.at(0).links;
        EXPECT_TRUE(links.lost(2));
        EXPECT_FALSE(links.greeted(2));
        EXPECT_EQ(links.endpoint(2), nullptr);
        const std::int64_t before = links.messages_sent();
        Message message;
        links.send(2, message);
        EXPECT_EQ(links.messages_sent(), before);
        EXPECT_TRUE(links.connect(2).ok()) << "nothing happens";
        EXPECT_EQ(links.endpoint(2), nullptr);
        links.declare_lost(2, peer_lost("again", 2));
    });
    ranks.settle();
    EXPECT_EQ(ranks.at(0).losses, 1);
    Inbox inbox(ranks.at(1));
    send_note(ranks.at(0), 1, 1);
    inbox.wait(1);
}

TEST(LinksTest, ADeclaredLossEndsWhatIsInFlight) {
    FakeRanks ranks(2);
    ranks.fabric().freeze(ranks.at(1).id, true);
    send_note(ranks.at(0), 1, 1);
    ranks.at(0).loop.run_and_wait([&] { ranks.at(0).links->declare_lost(1, peer_lost("no sign of life", 1)); });
    EXPECT_EQ(ranks.at(0).losses, 1);
    ranks.close(0);  // waits for whatever is in flight
}

TEST(LinksTest, MoreMessagesThanThePoolHoldsArriveAndAreCounted) {
    FakeRanks ranks(2);
    Inbox inbox(ranks.at(1));
    ranks.at(0).loop.run_and_wait([&] {
        Links& links = *ranks.at(0).links;
        EXPECT_EQ(links.pool_growth(), 0);
        for (std::uint64_t i = 0; i < 500; ++i) {
            Message message;
            message.kind = MessageKind::kNote;
            message.version = i;
            links.send(1, message);
        }
        EXPECT_GT(links.pool_growth(), 0);
    });
    inbox.wait(500);
    for (std::size_t i = 0; i < 500; ++i) {
        ASSERT_EQ(inbox.seen[i].message.version, i);
    }
    std::int64_t growth = 0;
    ranks.at(0).loop.run_and_wait([&] { growth = ranks.at(0).links->pool_growth(); });
    for (std::uint64_t i = 0; i < 100; ++i) {
        send_note(ranks.at(0), 1, i);
    }
    inbox.wait(100);
    ranks.at(0).loop.run_and_wait(
        [&] { EXPECT_EQ(ranks.at(0).links->pool_growth(), growth) << "the pool is used again"; });
}

// Somebody who knows the address and sends whatever he likes.
class Stranger {
public:
    Stranger(FakeRanks& ranks, FakeRank& target) {
        std::vector<std::byte> address;
        target.loop.run_and_wait([&] { address = target.transport->address(); });
        loop_.run_and_wait([&] {
            transport_ = ranks.fabric().open(loop_).transport;
            auto connected = transport_->connect(address, 0, [](const Status&) {});
            ASSERT_TRUE(connected.ok());
            endpoint_ = std::move(connected).value();
        });
    }
    ~Stranger() {
        CountedCompletion closed;
        loop_.run_and_wait([&] { endpoint_->close(true, closed); });
        EXPECT_TRUE(closed.wait_for());
        loop_.run_and_wait([&] {
            endpoint_.reset();
            transport_.reset();
        });
    }
    void send(std::span<const std::byte> header, std::span<const std::byte> payload) {
        CountedCompletion sent;
        loop_.run_and_wait([&] { endpoint_->send(header, payload, sent); });
        EXPECT_TRUE(sent.wait_for());
    }

private:
    EventLoop loop_{"stranger"};
    std::unique_ptr<transport::Transport> transport_;
    std::unique_ptr<transport::Endpoint> endpoint_;
};

TEST(LinksTest, RandomBytesAreDroppedWithALogLineAndNothingElseHappens) {
    FakeRanks ranks(2);
    Inbox inbox(ranks.at(0));
    {
        const ExpectedLog dropped("dropped a message of");
        Stranger stranger(ranks, ranks.at(0));
        std::mt19937_64 random(3);
        for (int i = 0; i < 2000; ++i) {
            std::vector<std::byte> header(i % 2 == 0 ? kMessageHeaderBytes : random() % 200);
            std::vector<std::byte> payload(random() % 300);
            for (auto* bytes : {&header, &payload}) {
                for (std::byte& b : *bytes) {
                    b = static_cast<std::byte>(random());
                }
            }
            stranger.send(header, payload);
        }
        ranks.settle();
        EXPECT_LE(dropped.seen(), 16) << "a hostile sender must not fill the log";
    }
    EXPECT_TRUE(inbox.seen.empty());
    EXPECT_EQ(ranks.at(0).losses, 0);
    send_note(ranks.at(1), 0, 4);
    inbox.wait(1);
}

TEST(LinksTest, MessagesOfAnotherSessionAndOfUnknownRanksAreDropped) {
    FakeRanks ranks(2);
    Inbox inbox(ranks.at(0));
    Stranger stranger(ranks, ranks.at(0));
    MessageHeader header;
    Message message;
    message.kind = MessageKind::kNote;
    {
        const ExpectedLog dropped("belongs to session");
        encode_message(message, FakeRanks::kSession + 1, header);
        stranger.send(header, {});
        ranks.settle();
    }
    {
        const ExpectedLog dropped("from rank 2");
        message.sender = 2;
        encode_message(message, FakeRanks::kSession, header);
        stranger.send(header, {});
        ranks.settle();
    }
    EXPECT_TRUE(inbox.seen.empty());
}

// A peer that still beats would otherwise have a new link opened, which nobody closes.
TEST(LinksTest, NoLinkIsOpenedOnceTheyClose) {
    FakeRanks ranks(2);
    ranks.close(0);
    ranks.at(0).loop.run_and_wait([&] {
        EXPECT_TRUE(ranks.at(0).links->connect(1).ok());
        EXPECT_FALSE(ranks.at(0).links->connected(1));
    });
}

TEST(LinksTest, CloseEndsEverythingOnce) {
    FakeRanks ranks(3);
    int closed = 0;
    std::binary_semaphore done(0);
    ranks.at(0).loop.run_and_wait([&] {
        for (int i = 0; i < 50; ++i) {
            ranks.at(0).links->send(i % 3, Message{});
        }
        ranks.at(0).links->close_all(/*force=*/false, [&] {
            ++closed;
            done.release();
        });
    });
    EXPECT_TRUE(done.try_acquire_for(kPatience)) << "waited for the end of all links";
    ranks.at(0).loop.run_and_wait([&] {
        EXPECT_FALSE(ranks.at(0).links->connected(1));
        EXPECT_EQ(ranks.at(0).losses, 0);
    });
    EXPECT_EQ(closed, 1);
}

}  // namespace
}  // namespace sluice::test

#include "tests/support/forked_peers.h"

#include "runtime/services/log.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <stdexcept>
#include <unistd.h>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

TEST(ForkedPeers, AllGatherGivesEverybodysBlobsByRank) {
    ForkedPeers peers(4, [](PeerChannel& channel) {
        for (int round = 0; round < 3; ++round) {
            const auto blobs = channel.all_gather(to_blob(std::to_string(channel.rank() * 10 + round)));
            EXPECT_EQ(blobs.size(), 4u);
            for (int rank = 0; rank < 4; ++rank) {
                EXPECT_EQ(to_text(*blobs.at(static_cast<std::size_t>(rank))), std::to_string(rank * 10 + round));
            }
        }
        return 0;
    });
    EXPECT_TRUE(peers.wait_all_ok());
}

TEST(ForkedPeers, BlobsLargerThanSocketBuffersDoNotBlockEachOther) {
    ForkedPeers peers(3, [](PeerChannel& channel) {
        const Blob mine(4 << 20, std::byte(channel.rank()));
        const auto blobs = channel.all_gather(mine);
        for (int rank = 0; rank < 3; ++rank) {
            EXPECT_EQ(*blobs.at(static_cast<std::size_t>(rank)), Blob(4 << 20, std::byte(rank)));
        }
        return 0;
    });
    EXPECT_TRUE(peers.wait_all_ok());
}

TEST(ForkedPeers, EachBodyIsAProcessAndItsCodeIsCollected) {
    ForkedPeers peers({[](PeerChannel& channel) {
                           channel.send_to_test(to_blob(std::to_string(::getpid())));
                           return 0;
                       },
                       [](PeerChannel&) { return 4; }});
    EXPECT_EQ(to_text(peers.receive(0).value()), std::to_string(peers.pid(0)));
    EXPECT_NE(peers.pid(0), ::getpid());
    EXPECT_TRUE(peers.wait(0).ok());
    EXPECT_EQ(peers.wait(1).code, 4);
}

TEST(ForkedPeers, AKilledPeerIsReapedAndTheOthersSeeItGone) {
    ForkedPeers peers({[](PeerChannel& channel) {
                           channel.send_to_test(to_blob("ready"));
                           const auto blobs = channel.all_gather(to_blob("alive"));
                           EXPECT_FALSE(blobs.at(1).has_value());
                           EXPECT_TRUE(blobs.at(0).has_value());
                           return 0;
                       },
                       [](PeerChannel&) {
                           ::pause();
                           return 0;
                       }});
    ASSERT_TRUE(peers.receive(0).has_value());
    peers.kill(1);
    EXPECT_NE(::kill(peers.pid(1), 0), 0);  // reaped: no such process, not even a zombie
    EXPECT_EQ(peers.wait(1).signal, SIGKILL);
    EXPECT_TRUE(peers.wait_all_ok({1}));
}

TEST(ForkedPeers, TheTestTalksToAPeer) {
    ForkedPeers peers(1, [](PeerChannel& channel) {
        channel.send_to_test(to_blob(to_text(channel.receive_from_test().value()) + " back"));
        return 0;
    });
    peers.send(0, to_blob("there and"));
    EXPECT_EQ(to_text(peers.receive(0).value()), "there and back");
    EXPECT_TRUE(peers.wait_all_ok());
}

TEST(ForkedPeers, APeerThatHangsIsKilledAtTheDeadlineAndFailsTheTest) {
    const auto start = ForkedPeers::Clock::now();
    ForkedPeers peers(
        1,
        [](PeerChannel&) {
            ::pause();
            return 0;
        },
        200ms);
    EXPECT_FALSE(peers.receive(0).has_value());
    EXPECT_NONFATAL_FAILURE(peers.wait_all_ok(), "after its deadline");
    EXPECT_LT(ForkedPeers::Clock::now() - start, 5s);
}

TEST(ForkedPeers, WhatFailsInAPeerFailsTheTest) {
    ForkedPeers expectation(1, [](PeerChannel&) {
        EXPECT_EQ(1, 2) << "on purpose";
        return 0;
    });
    EXPECT_EQ(expectation.wait(0).code, ForkedPeers::kFailedExpectations);
    ForkedPeers exception(1, [](PeerChannel&) -> int { throw std::runtime_error("on purpose"); });
    EXPECT_EQ(exception.wait(0).code, ForkedPeers::kThrew);
    ForkedPeers warning(1, [](PeerChannel&) {
        log::warning("on purpose");
        return 0;
    });
    EXPECT_EQ(warning.wait(0).code, ForkedPeers::kFailedExpectations);
}

TEST(ForkedPeers, DestructionLeavesNoProcessBehind) {
    pid_t pid = 0;
    {
        ForkedPeers peers(1, [](PeerChannel&) {
            ::pause();
            return 0;
        });
        pid = peers.pid(0);
    }
    EXPECT_NE(::kill(pid, 0), 0);
}

}  // namespace
}  // namespace sluice::test

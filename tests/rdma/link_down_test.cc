// The link between the nodes fails in the middle of syncs: both sides lose the other, end soon, and commit nothing more; and the next
// sync works.
#include "tests/exchange/failing_sync.h"
#include "tests/support/measured.h"
#include "tests/transport/reading_peers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string>
#include <thread>

namespace sluice::test {
namespace {

// The address of a link that comes up again is found out anew, which takes the kernel a moment.
constexpr std::chrono::seconds kLinkSettles{1};
constexpr int kTrials = 4;

// What of node 1 fails, as nodes.sh calls it: the cable is pulled ("link"), or somebody takes its network interface down ("interface").
class LinkDownTest : public testing::TestWithParam<const char*> {
public:
    ~LinkDownTest() override { set("up"); }

protected:
    void set(const char* state) {
        const std::string command = fmt::format("bash /sluice/tests/rdma/guest/nodes.sh {} 1 {}", GetParam(), state);
        // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs.
        ASSERT_EQ(std::system(command.c_str()), 0) << command;
    }
};

TEST_P(LinkDownTest, BothSidesEndSoonNameSomebodyOfTheOtherSideAndTheNextSyncWorks) {
    std::mt19937_64 random(3);
    std::chrono::steady_clock::duration slowest{};
    for (int trial = 0; trial < kTrials && !HasFailure(); ++trial) {
        const BedOptions options = failing_sync_options(trial % 2 == 0 ? SourceKind::kResident : SourceKind::kGathered);
        const auto delay = std::chrono::microseconds(random() % 400'000);
        const std::string what =
            fmt::format("trial {}: the {} goes down after {} us", trial, GetParam(), delay.count());
        SCOPED_TRACE(what);
        const BedModel model(options);
        const SocketMesh mesh(4);
        ForkedPeers peers(
            4,
            [&](PeerChannel& channel) {
                return sync_until_failure(channel, mesh, options, model, ucx_factory(Network::kUcxRc), /*good=*/1);
            },
            kFailingSyncLimit);
        for (int rank = 0; rank < 4; ++rank) {
            const auto ready = peers.receive(rank);
            ASSERT_TRUE(ready && to_text(*ready) == "ready") << "rank " << rank << ": the first version";
        }
        std::this_thread::sleep_for(delay);
        set("down");
        const auto down = std::chrono::steady_clock::now();  // The command is slow to start; what it does comes last.
        for (int rank = 0; rank < 4; ++rank) {
            const auto ended = peers.receive(rank);
            ASSERT_TRUE(ended) << "rank " << rank << " did not end: " << peers.wait(rank).describe();
            const auto took = std::chrono::steady_clock::now() - down;
            EXPECT_LT(took, kSurvivorsEndWithin) << "rank " << rank << " says: " << to_text(*ended);
            slowest = std::max(slowest, took);
            std::istringstream words(to_text(*ended));
            int code = 0;
            int peer = -1;
            words >> code >> peer;
            EXPECT_EQ(code, static_cast<int>(StatusCode::kPeerLost)) << to_text(*ended);
            EXPECT_EQ(peer / 2, 1 - rank / 2) << "rank " << rank << " says: " << to_text(*ended);
        }
        EXPECT_TRUE(peers.wait_all_ok());
        set("up");
        std::this_thread::sleep_for(kLinkSettles);
        ASSERT_FALSE(HasFailure());
        expect_good_sync(options, model, Network::kUcxRc, what);
    }
    print_measured(
        "the {} of a node down, {} times: all ranks end after {:.2f} s at most (limit {} s), the next sync is exact",
        GetParam(), kTrials, seconds(slowest), kSurvivorsEndWithin.count());
}

// Below the sync, without its heartbeats: gets in flight in both directions.
TEST_P(LinkDownTest, EveryGetEndsOnceWithItsBytesOrAnError) {
    std::mt19937_64 random(4);
    std::chrono::steady_clock::duration slowest{};
    content();
    for (int trial = 0; trial < kTrials / 2 && !HasFailure(); ++trial) {
        ForkedPeers peers(
            2,
            [](PeerChannel& channel) {
                Node node(channel, Network::kUcxRc);
                Reading reading(node, 1 - channel.rank());
                channel.send_to_test({});
                EXPECT_TRUE(reading.ended.wait_for()) << "gets over a dead link hang";
                channel.send_to_test({});
                node.loop.run_and_wait([&] { EXPECT_EQ(reading.started, reading.succeeded + reading.failed); });
                return 0;
            },
            kPeersLimit);
        peers.receive(0);
        peers.receive(1);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 400'000));
        set("down");
        const auto down = std::chrono::steady_clock::now();
        for (int peer = 0; peer < 2; ++peer) {
            ASSERT_TRUE(peers.receive(peer)) << "peer " << peer << ": " << peers.wait(peer).describe();
            slowest = std::max(slowest, std::chrono::steady_clock::now() - down);
        }
        EXPECT_LT(slowest, death_noticed_within(Network::kUcxRc));
        EXPECT_TRUE(peers.wait_all_ok());
        set("up");
        std::this_thread::sleep_for(kLinkSettles);
    }
    print_measured(
        "the {} of a node down, {} times: every get ends once, with its bytes or an error, after {:.2f} s at most",
        GetParam(), kTrials / 2, seconds(slowest));
}

INSTANTIATE_TEST_SUITE_P(Failures, LinkDownTest, testing::Values("link", "interface"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace sluice::test

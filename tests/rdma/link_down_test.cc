// The link between the nodes is taken down in the middle of syncs: both sides lose the other, end soon, and commit nothing more;
// and the next sync works.
#include "tests/exchange/failing_sync.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <sstream>
#include <thread>

namespace sluice::test {
namespace {

// The address of a link that comes up again is found out anew, which takes the kernel a moment.
constexpr std::chrono::seconds kLinkSettles{1};

void set_link(const char* state) {
    const std::string command = fmt::format("bash /sluice/tests/rdma/guest/nodes.sh link 1 {}", state);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs.
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

struct LinkDown : testing::Test {
    ~LinkDown() override { set_link("up"); }
};

TEST_F(LinkDown, BothSidesEndSoonNameSomebodyOfTheOtherSideAndTheNextSyncWorks) {
    std::mt19937_64 random(3);
    for (int trial = 0; trial < 4 && !HasFailure(); ++trial) {
        const BedOptions options = failing_sync_options(trial % 2 == 0 ? SourceKind::kResident : SourceKind::kGathered);
        const auto delay = std::chrono::microseconds(random() % 400'000);
        SCOPED_TRACE(fmt::format("trial {}: the link goes down after {} us", trial, delay.count()));
        const BedModel model(options);
        const SocketMesh mesh(4);
        ForkedPeers peers(
            4,
            [&](PeerChannel& channel) {
                return sync_until_failure(channel, mesh, options, model, Network::kUcxRc, /*good=*/1);
            },
            kFailingSyncLimit);
        for (int rank = 0; rank < 4; ++rank) {
            const auto ready = peers.receive(rank);
            ASSERT_TRUE(ready && to_text(*ready) == "ready") << "rank " << rank << ": a sync after the last trial";
        }
        std::this_thread::sleep_for(delay);
        set_link("down");
        const auto down = std::chrono::steady_clock::now();  // The command is slow to start; what it does comes last.
        for (int rank = 0; rank < 4; ++rank) {
            const auto ended = peers.receive(rank);
            ASSERT_TRUE(ended) << "rank " << rank << " did not end";
            EXPECT_LT(std::chrono::steady_clock::now() - down, kSurvivorsEndWithin)
                << "rank " << rank << " says: " << to_text(*ended);
            std::istringstream words(to_text(*ended));
            int code = 0;
            int peer = -1;
            words >> code >> peer;
            EXPECT_EQ(code, static_cast<int>(StatusCode::kPeerLost)) << to_text(*ended);
            EXPECT_EQ(peer / 2, 1 - rank / 2) << "rank " << rank << " says: " << to_text(*ended);
        }
        EXPECT_TRUE(peers.wait_all_ok());
        set_link("up");
        std::this_thread::sleep_for(kLinkSettles);
    }
}

}  // namespace
}  // namespace sluice::test

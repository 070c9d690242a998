// Real processes over UCX, one of which is killed in the middle of its work: the others end soon, name it, and commit nothing more.
#include "tests/exchange/failing_sync.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

class SyncDeathTest : public testing::TestWithParam<Network> {};

TEST_P(SyncDeathTest, WheneverARankIsKilledTheOthersNameIt) {
    const Network network = GetParam();
    std::mt19937_64 random(network == Network::kUcxTcp ? 1 : 2);
    const int trials = network == Network::kUcxRc ? 20 : 10;
    for (int trial = 0; trial < trials && !HasFailure(); ++trial) {
        const BedOptions options = failing_sync_options(trial % 2 == 0 ? SourceKind::kResident : SourceKind::kGathered);
        // Half of the trials begin with a version that must be good, whatever the last trial has left behind.
        const std::uint64_t good = trial / 4 % 2 == 0 ? 0 : 1;
        const int victim = trial % 4;  // the coordinator, a trainer, two workers
        const auto delay = std::chrono::microseconds(random() % (network == Network::kUcxRc ? 400'000 : 40'000));
        SCOPED_TRACE(fmt::format("trial {}: rank {} is killed after {} us", trial, victim, delay.count()));
        const BedModel model(options);  // made once, before the fork
        const SocketMesh mesh(4);
        ForkedPeers peers(
            4, [&](PeerChannel& channel) { return sync_until_failure(channel, mesh, options, model, network, good); },
            kFailingSyncLimit);
        for (int rank = 0; rank < 4; ++rank) {
            const auto ready = peers.receive(rank);
            ASSERT_TRUE(ready && to_text(*ready) == "ready") << "rank " << rank << ": set-up";
        }
        std::this_thread::sleep_for(delay);
        const auto killed = std::chrono::steady_clock::now();
        peers.kill(victim);
        std::string last_version;
        for (int rank = 0; rank < 4; ++rank) {
            if (rank == victim) {
                continue;
            }
            const auto ended = peers.receive(rank);
            ASSERT_TRUE(ended) << "rank " << rank << " did not end";
            const std::string text = to_text(*ended);
            EXPECT_LT(std::chrono::steady_clock::now() - killed, kSurvivorsEndWithin)
                << "rank " << rank << " says: " << text;
            const std::string expected = fmt::format("{} {} ", static_cast<int>(StatusCode::kPeerLost), victim);
            EXPECT_TRUE(text.starts_with(expected)) << "rank " << rank << " says: " << text;
            const std::string version = text.substr(expected.size(), text.find(' ', expected.size()) - expected.size());
            EXPECT_TRUE(last_version.empty() || version == last_version)
                << "survivors failed in different versions: " << text;
            last_version = version;
        }
        EXPECT_TRUE(peers.wait_all_ok({victim}));
        EXPECT_LT(std::chrono::steady_clock::now() - killed, kSurvivorsEndWithin + 2s) << "closing took too long";
    }
}

INSTANTIATE_TEST_SUITE_P(Networks, SyncDeathTest, testing::ValuesIn(ucx_networks()),
                         [](const auto& instance) { return to_string(instance.param); });

}  // namespace
}  // namespace sluice::test

// Real processes over UCX, one of which is killed in the middle of its work: the others end soon, name it, and commit nothing more.
#include "tests/exchange/failing_sync.h"
#include "tests/support/measured.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <string>
#include <thread>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

class SyncDeathTest : public testing::TestWithParam<Network> {};

TEST_P(SyncDeathTest, WheneverARankIsKilledTheOthersNameItAndTheNextSyncWorks) {
    const Network network = GetParam();
    std::mt19937_64 random(network == Network::kUcxTcp ? 1 : 2);
    const int trials = network == Network::kUcxRc ? 40 : 12;
    std::array<std::chrono::steady_clock::duration, 2> slowest{};  // after the death of a trainer, of a worker
    // Most trials begin with a version that must be good, whatever the last trial has left behind. Some are killed in their first version;
    // before those, and at the end, there is a sync of its own.
    const auto first_version = [](int trial) { return trial % 5 == 0; };
    for (int trial = 0; trial < trials && !HasFailure(); ++trial) {
        const int victim = trial % 4;  // the coordinator, a trainer, two workers
        const BedOptions options =
            failing_sync_options(trial / 4 % 2 == 0 ? SourceKind::kResident : SourceKind::kGathered);
        const std::uint64_t good = first_version(trial) ? 0 : 1;
        const auto delay = std::chrono::microseconds(random() % (network == Network::kUcxRc ? 400'000 : 40'000));
        const std::string what =
            fmt::format("trial {}: rank {} is killed {} us after version {}", trial, victim, delay.count(), good);
        SCOPED_TRACE(what);
        const BedModel model(options);  // made once, before the fork
        const SocketMesh mesh(4);
        ForkedPeers peers(
            4,
            [&](PeerChannel& channel) {
                return sync_until_failure(channel, mesh, options, model, ucx_factory(network), good);
            },
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
            const auto took = std::chrono::steady_clock::now() - killed;
            EXPECT_LT(took, kSurvivorsEndWithin) << "rank " << rank << " says: " << text;
            auto& slow = slowest[static_cast<std::size_t>(victim / 2)];
            slow = std::max(slow, took);
            const std::string expected = fmt::format("{} {} ", static_cast<int>(StatusCode::kPeerLost), victim);
            EXPECT_TRUE(text.starts_with(expected)) << "rank " << rank << " says: " << text;
            const std::string version = text.substr(expected.size(), text.find(' ', expected.size()) - expected.size());
            EXPECT_TRUE(last_version.empty() || version == last_version)
                << "survivors failed in different versions: " << text;
            last_version = version;
        }
        EXPECT_TRUE(peers.wait_all_ok({victim}));
        EXPECT_LT(std::chrono::steady_clock::now() - killed, kSurvivorsEndWithin + 2s) << "closing took too long";
        if (trial + 1 == trials || first_version(trial + 1)) {
            expect_good_sync(options, model, network, what);
        }
    }
    for (const bool worker : {false, true}) {
        print_measured(
            "{} kills of {} over {}: survivors end after {:.2f} s at most (limit {} s), the next sync is exact",
            trials / 2, worker ? "a worker" : "an owner", to_string(network), seconds(slowest[worker ? 1 : 0]),
            kSurvivorsEndWithin.count());
    }
}

// Nothing goes on between the ranks but their heartbeats.
TEST_P(SyncDeathTest, ARankThatIsKilledBetweenSyncsIsNamedByTheNextOne) {
    const Network network = GetParam();
    for (int victim = 0; victim < 4; victim += 3) {
        SCOPED_TRACE(fmt::format("rank {} is killed", victim));
        const BedOptions options = failing_sync_options(SourceKind::kResident);
        const BedModel model(options);
        const SocketMesh mesh(4);
        ForkedPeers peers(
            4,
            [&](PeerChannel& channel) {
                return sync_until_failure(channel, mesh, options, model, ucx_factory(network), /*good=*/1,
                                          /*idle=*/true);
            },
            kFailingSyncLimit);
        for (int rank = 0; rank < 4; ++rank) {
            const auto ready = peers.receive(rank);
            ASSERT_TRUE(ready && to_text(*ready) == "ready") << "rank " << rank << ": the first version";
        }
        peers.kill(victim);
        std::this_thread::sleep_for(options.settings.heartbeat_dead_after);
        const auto go = std::chrono::steady_clock::now();
        for (int rank = 0; rank < 4; ++rank) {
            if (rank != victim) {
                peers.send(rank, {});
            }
        }
        for (int rank = 0; rank < 4; ++rank) {
            if (rank == victim) {
                continue;
            }
            const auto ended = peers.receive(rank);
            ASSERT_TRUE(ended) << "rank " << rank << " did not end";
            EXPECT_LT(std::chrono::steady_clock::now() - go, kSurvivorsEndWithin) << to_text(*ended);
            EXPECT_TRUE(
                to_text(*ended).starts_with(fmt::format("{} {} ", static_cast<int>(StatusCode::kPeerLost), victim)))
                << "rank " << rank << " says: " << to_text(*ended);
        }
        EXPECT_TRUE(peers.wait_all_ok({victim}));
    }
}

INSTANTIATE_TEST_SUITE_P(Networks, SyncDeathTest, testing::ValuesIn(ucx_networks()),
                         [](const auto& instance) { return to_string(instance.param); });

}  // namespace
}  // namespace sluice::test

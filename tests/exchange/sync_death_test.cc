// Real processes over UCX, one of which is killed in the middle of its work: the others end soon, name it, and commit nothing more.
#include "tests/exchange/socket_bootstrap.h"
#include "tests/exchange/sync_bed.h"
#include "tests/support/forked_peers.h"
#include "tests/support/log_guard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kSurvivorsEndWithin = 4s;

BedOptions options_of(SourceKind source) {
    BedOptions options;
    options.trainer = "tp=2";
    options.workers = {"tp=1,replicas=2"};
    options.source = source;
    options.settings.heartbeat_dead_after = 1500ms;
    return options;
}

// Syncs until it fails; then tells "code peer version message" and goes.
int sync_until_failure(PeerChannel& channel, const SocketMesh& mesh, const BedOptions& options, const BedModel& model,
                       Network network) {
    const ExpectedLog lost("lost|dropped a message|cannot reach", ExpectedLog::Presence::kAllowed);
    BedRank rank(options, model, channel.rank());
    const auto bootstrap = mesh.bootstrap(channel.rank());
    const Status created = rank.create(*bootstrap, ucx_factory(network));
    EXPECT_TRUE(created.ok()) << created.message();
    channel.send_to_test(to_blob("ready"));
    std::uint64_t version = 0;
    Status status;
    while (status.ok()) {
        rank.prepare(++version);
        status = rank.sync(version);
        if (status.ok() && !rank.is_trainer()) {
            EXPECT_EQ(rank.wrong_parameters(version), std::vector<std::string>{});
        }
    }
    if (!rank.is_trainer()) {
        EXPECT_EQ(rank.worker().version(), version - 1) << "the version that failed was committed";
    }
    channel.send_to_test(to_blob(fmt::format("{} {} {} {}", static_cast<int>(status.code()), status.peer().value_or(-1),
                                             version, status.message())));
    rank.close();
    return testing::Test::HasFailure() ? ForkedPeers::kFailedExpectations : 0;
}

class SyncDeathTest : public testing::TestWithParam<Network> {};

TEST_P(SyncDeathTest, WheneverARankIsKilledTheOthersNameIt) {
    const Network network = GetParam();
    std::mt19937_64 random(network == Network::kUcxTcp ? 1 : 2);
    for (int trial = 0; trial < 10 && !HasFailure(); ++trial) {
        const BedOptions options = options_of(trial % 2 == 0 ? SourceKind::kResident : SourceKind::kGathered);
        const int victim = trial % 4;  // the coordinator, a trainer, two workers
        const auto delay = std::chrono::microseconds(random() % 40'000);
        SCOPED_TRACE(fmt::format("trial {}: rank {} is killed after {} us", trial, victim, delay.count()));
        const BedModel model(options);  // made once, before the fork
        const SocketMesh mesh(4);
        ForkedPeers peers(
            4, [&](PeerChannel& channel) { return sync_until_failure(channel, mesh, options, model, network); }, 40s);
        for (int rank = 0; rank < 4; ++rank) {
            const auto ready = peers.receive(rank);
            ASSERT_TRUE(ready && to_text(*ready) == "ready") << "rank " << rank << ": set-up";
        }
        std::this_thread::sleep_for(delay);
        const Clock::time_point killed = Clock::now();
        peers.kill(victim);
        std::string last_version;
        for (int rank = 0; rank < 4; ++rank) {
            if (rank == victim) {
                continue;
            }
            const auto ended = peers.receive(rank);
            ASSERT_TRUE(ended) << "rank " << rank << " did not end";
            const std::string text = to_text(*ended);
            EXPECT_LT(Clock::now() - killed, kSurvivorsEndWithin) << "rank " << rank << " says: " << text;
            const std::string expected = fmt::format("{} {} ", static_cast<int>(StatusCode::kPeerLost), victim);
            EXPECT_TRUE(text.starts_with(expected)) << "rank " << rank << " says: " << text;
            const std::string version = text.substr(expected.size(), text.find(' ', expected.size()) - expected.size());
            EXPECT_TRUE(last_version.empty() || version == last_version)
                << "survivors failed in different versions: " << text;
            last_version = version;
        }
        EXPECT_TRUE(peers.wait_all_ok({victim}));
        EXPECT_LT(Clock::now() - killed, kSurvivorsEndWithin + 2s) << "closing took too long";
    }
}

INSTANTIATE_TEST_SUITE_P(Networks, SyncDeathTest, testing::Values(Network::kUcxTcp, Network::kUcxCma),
                         [](const auto& instance) { return to_string(instance.param); });

}  // namespace
}  // namespace sluice::test

// Real processes over UCX, one of which is killed while a worker is in the hook of a layer: the others end soon and commit nothing.
#include "tests/exchange/socket_bootstrap.h"
#include "tests/exchange/sync_bed.h"
#include "tests/support/forked_peers.h"
#include "tests/support/log_guard.h"
#include "tests/worker/kernel_worker.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kSurvivorsEndWithin = 4s;
constexpr int kRanks = 4;         // two trainers, two workers
constexpr int kHookedWorker = 2;  // whose hook tells the test of version 2

BedOptions death_options(SourceKind source) {
    BedOptions options;
    options.trainer = "tp=2";
    options.workers = {"tp=1,replicas=2"};
    options.source = source;
    options.settings.heartbeat_dead_after = 1500ms;
    return options;
}

int sync_until_failure(PeerChannel& channel, const SocketMesh& mesh, const BedOptions& options, const BedModel& model,
                       Network network) {
    const ExpectedLog lost("lost|dropped a message|cannot reach", ExpectedLog::Presence::kAllowed);
    BedRank rank(options, model, channel.rank());
    std::optional<KernelWorker> kernel;
    if (!rank.is_trainer()) {
        kernel.emplace(rank);
        rank.worker_options.layers_in_flight = 1;
        kernel->watching.on_run = [&](const LandedLayer& layer) {
            if (channel.rank() == kHookedWorker && layer.version == 2 && kernel->watching.calls(2).size() == 2) {
                channel.send_to_test(to_blob("in the hook"));
                std::this_thread::sleep_for(300ms);
            }
            return ok_status();
        };
    }
    const auto bootstrap = mesh.bootstrap(channel.rank());
    const Status created = rank.create(*bootstrap, ucx_factory(network));
    EXPECT_TRUE(created.ok()) << created.message();
    std::uint64_t version = 0;
    Status status;
    while (status.ok()) {
        rank.prepare(++version);
        status = rank.sync(version);
        if (status.ok() && kernel) {
            EXPECT_EQ(rank.wrong_parameters(version), std::vector<std::string>{});
            EXPECT_EQ(kernel->wrong(version), "");
        }
    }
    if (kernel) {
        EXPECT_EQ(rank.worker().version(), 1U) << "the version that failed was committed";
        EXPECT_TRUE(rank.worker().dirty());
        EXPECT_LE(kernel->watching.calls(2).size(), kernel->layers().size());
        if (channel.rank() == kHookedWorker) {
            EXPECT_EQ(kernel->watching.calls(2).size(), 2U) << "a hook ran after the failure";
        }
    }
    channel.send_to_test(
        to_blob(fmt::format("{} {} {}", static_cast<int>(status.code()), status.peer().value_or(-1), version)));
    rank.close();
    return testing::Test::HasFailure() ? ForkedPeers::kFailedExpectations : 0;
}

class LayerDeathTest : public testing::TestWithParam<Network> {};

TEST_P(LayerDeathTest, DuringAHookNothingIsCommitted) {
    for (const SourceKind source : {SourceKind::kResident, SourceKind::kGathered}) {
        for (const int victim : {0, 1, 3}) {  // the coordinator, a trainer, the other worker
            SCOPED_TRACE(fmt::format("rank {} is killed", victim));
            const BedOptions options = death_options(source);
            const BedModel model(options);
            const SocketMesh mesh(kRanks);
            ForkedPeers peers(
                kRanks,
                [&](PeerChannel& channel) { return sync_until_failure(channel, mesh, options, model, GetParam()); },
                30s);
            const auto hooked = peers.receive(kHookedWorker);
            ASSERT_TRUE(hooked && to_text(*hooked) == "in the hook");
            const Clock::time_point killed = Clock::now();
            peers.kill(victim);
            for (int rank = 0; rank < kRanks; ++rank) {
                if (rank == victim) {
                    continue;
                }
                const auto ended = peers.receive(rank);
                ASSERT_TRUE(ended) << "rank " << rank << " did not end";
                EXPECT_LT(Clock::now() - killed, kSurvivorsEndWithin) << "rank " << rank;
                EXPECT_EQ(to_text(*ended), fmt::format("{} {} 2", static_cast<int>(StatusCode::kPeerLost), victim))
                    << "rank " << rank;
            }
            EXPECT_TRUE(peers.wait_all_ok({victim}));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Networks, LayerDeathTest, testing::Values(Network::kUcxTcp, Network::kUcxCma),
                         [](const auto& instance) { return to_string(instance.param); });

}  // namespace
}  // namespace sluice::test

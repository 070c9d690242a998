#include "tests/exchange/failing_sync.h"

#include "tests/support/log_guard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace sluice::test {

BedOptions failing_sync_options(SourceKind source) {
    BedOptions options;
    options.trainer = "tp=2";
    options.workers = {"tp=1,replicas=2"};
    options.source = source;
    options.settings.heartbeat_dead_after = std::chrono::milliseconds(1500);
    return options;
}

int sync_until_failure(PeerChannel& channel, const SocketMesh& mesh, const BedOptions& options, const BedModel& model,
                       const Session::TransportFactory& open_transport, std::uint64_t good, bool idle) {
    const ExpectedLog lost("lost|dropped a message|cannot reach", ExpectedLog::Presence::kAllowed);
    enter_node(channel.rank() / 2);
    BedRank rank(options, model, channel.rank());
    const auto bootstrap = mesh.bootstrap(channel.rank());
    Status status = rank.create(*bootstrap, open_transport);
    EXPECT_TRUE(status.ok()) << status.message();
    std::uint64_t version = 0;
    while (status.ok()) {
        if (version == good) {
            channel.send_to_test(to_blob("ready"));
            if (idle) {
                channel.receive_from_test();
            }
        }
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

void expect_good_sync(const BedOptions& options, const BedModel& model, Network network, const std::string& when) {
    const SocketMesh mesh(model.ranks());
    ForkedPeers peers(
        model.ranks(),
        [&](PeerChannel& channel) {
            enter_node(channel.rank() / 2);
            BedRank rank(options, model, channel.rank());
            const auto bootstrap = mesh.bootstrap(channel.rank());
            const Status created = rank.create(*bootstrap, ucx_factory(network));
            EXPECT_TRUE(created.ok()) << created.message();
            if (created.ok()) {
                rank.prepare(1);
                const Status status = rank.sync(1);
                EXPECT_TRUE(status.ok()) << status.message();
                if (!rank.is_trainer()) {
                    EXPECT_EQ(rank.wrong_parameters(1), std::vector<std::string>{});
                }
            }
            rank.close();
            return 0;
        },
        kFailingSyncLimit);
    EXPECT_TRUE(peers.wait_all_ok()) << "the next sync after " << when;
}

}  // namespace sluice::test

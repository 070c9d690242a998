#include "tests/cuda/gpu_ranks.h"

#include "runtime/cuda/cuda_device.h"
#include "tests/exchange/socket_bootstrap.h"
#include "transport/ucx/ucx_transport.h"

#include <utility>
#include <vector>

namespace sluice::test {

const std::string& why_no_gpu() {
    static const std::string why = why_not_gpus(1);
    return why;
}

BedOptions gpu_options(RouteOptions::PathChoice path) {
    using PathChoice = RouteOptions::PathChoice;
    BedOptions options;
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    options.route.path = path;
    options.settings.mapped = path == PathChoice::kAuto || path == PathChoice::kMapped;
    options.open_device = [lanes = options.settings.copy_threads](int, bool) {
        auto device = open_cuda_device(0, lanes);
        EXPECT_TRUE(device.ok()) << device.status().message();
        return std::move(*device);
    };
    return options;
}

GpuNetwork::GpuNetwork() {
    auto device = open_cuda_device(0, 1);
    EXPECT_TRUE(device.ok()) << device.status().message();
    device_ = std::move(*device);
    probe_.emplace(std::move(*device_->allocate(4096)));
}

Session::TransportFactory GpuNetwork::factory(const std::string& transports) {
    return [this, transports](EventLoop& loop) {
        transport::UcxOptions options;
        options.settings = {{"RNDV_THRESH", "inf"},
                            {"NET_DEVICES", "lo"},
                            {"TLS", transports},
                            {"CUDA_IPC_ENABLE_GET_ZCOPY", "y"},
                            {"MEMTYPE_CACHE", "n"}};
        options.probe_memory = probe_->bytes();
        options.probe_kind = MemoryKind::kCuda;
        return transport::open_ucx_transport(loop, options);
    };
}

void run_ranks(const BedOptions& options, const RankBody& body, std::chrono::steady_clock::duration limit,
               const std::function<void(ForkedPeers&)>& meanwhile) {
    if (const std::string& why = why_no_gpu(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    const BedModel model(options);
    const SocketMesh mesh(2);
    ForkedPeers peers(
        2,
        [&](PeerChannel& channel) {
            GpuNetwork network;
            const auto bootstrap = mesh.bootstrap(channel.rank());
            BedRank rank(options, model, channel.rank());
            body(channel, rank, *bootstrap, network);
            return testing::Test::HasFailure() ? ForkedPeers::kFailedExpectations : 0;
        },
        limit);
    meanwhile(peers);
    EXPECT_TRUE(peers.wait_all_ok());
}

void create(BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network) {
    const Status created = rank.create(bootstrap, network.factory());
    ASSERT_TRUE(created.ok()) << created.message();
}

void sync(BedRank& rank, std::uint64_t version) {
    rank.prepare(version);
    const Status status = rank.sync(version);
    ASSERT_TRUE(status.ok()) << status.message();
    if (!rank.is_trainer()) {
        ASSERT_EQ(rank.wrong_parameters(version), std::vector<std::string>{}) << "version " << version;
    }
}

}  // namespace sluice::test

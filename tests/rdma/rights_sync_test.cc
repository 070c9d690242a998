// A sync that reads what its owner has not registered: the owner's device refuses, that sync fails and commits nothing, and neither
// another sync by the same devices nor the next one notices.
#include "tests/exchange/failing_sync.h"
#include "tests/support/measured.h"
#include "transport/ucx/ucx_key_format.h"

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <utility>

namespace sluice::test {
namespace {

using transport::Access;

constexpr std::uint64_t kBystanderVersions = 5;

// Says that it is all of `memory`, of which only the first half is registered.
class HalfRegistered final : public transport::MemoryRegion {
public:
    HalfRegistered(std::unique_ptr<transport::MemoryRegion> half, std::span<std::byte> memory)
        : half_(std::move(half)), memory_(memory) {}
    [[nodiscard]] std::byte* data() const override { return memory_.data(); }
    [[nodiscard]] std::size_t size() const override { return memory_.size(); }
    [[nodiscard]] MemoryKind kind() const override { return half_->kind(); }
    [[nodiscard]] std::vector<std::byte> packed_key() const override {
        const std::vector<std::byte> honest = half_->packed_key();
        transport::UcxKeyFields fields = transport::decode_key(honest).value();
        fields.size = memory_.size();
        return transport::encode_key(fields);
    }

private:
    std::unique_ptr<transport::MemoryRegion> half_;
    std::span<std::byte> memory_;
};

// UCX, less half of each region that others may read. For a rank that only serves: what is read into is not to be touched.
class HalfRegistering final : public transport::Transport {
public:
    explicit HalfRegistering(std::unique_ptr<transport::Transport> ucx) : ucx_(std::move(ucx)) {}
    [[nodiscard]] std::vector<std::byte> address() const override { return ucx_->address(); }
    [[nodiscard]] std::size_t max_message_bytes() const override { return ucx_->max_message_bytes(); }
    void set_message_handler(transport::MessageHandler handler) override {
        ucx_->set_message_handler(std::move(handler));
    }
    Result<std::unique_ptr<transport::MemoryRegion>> register_memory(std::span<std::byte> memory, MemoryKind kind,
                                                                     Access access) override {
        if (access == Access::kLocal) {
            return ucx_->register_memory(memory, kind, access);
        }
        SLUICE_ASSIGN_OR_RETURN(auto half, ucx_->register_memory(memory.first(memory.size() / 2), kind, access));
        return std::unique_ptr<transport::MemoryRegion>(std::make_unique<HalfRegistered>(std::move(half), memory));
    }
    Result<std::unique_ptr<transport::Endpoint>> connect(std::span<const std::byte> address, int peer,
                                                         transport::PeerLostHandler on_lost) override {
        return ucx_->connect(address, peer, std::move(on_lost));
    }

private:
    std::unique_ptr<transport::Transport> ucx_;
};

Result<std::unique_ptr<transport::Transport>> open_half_registering(EventLoop& loop) {
    SLUICE_ASSIGN_OR_RETURN(auto ucx, ucx_factory(Network::kUcxRc)(loop));
    return std::unique_ptr<transport::Transport>(std::make_unique<HalfRegistering>(std::move(ucx)));
}

// A rank of the other sync: tells when its first version is there, and syncs more of them when it is told to.
int sync_beside(PeerChannel& channel, const SocketMesh& mesh, const BedOptions& options, const BedModel& model) {
    enter_node(channel.rank() / 2);
    BedRank rank(options, model, channel.rank());
    const auto bootstrap = mesh.bootstrap(channel.rank());
    Status status = rank.create(*bootstrap, ucx_factory(Network::kUcxRc));
    for (std::uint64_t version = 1; status.ok() && version <= kBystanderVersions; ++version) {
        rank.prepare(version);
        status = rank.sync(version);
        if (status.ok() && !rank.is_trainer()) {
            EXPECT_EQ(rank.wrong_parameters(version), std::vector<std::string>{});
        }
        if (version == 1) {
            channel.send_to_test(to_blob("ready"));
            channel.receive_from_test();
        }
    }
    EXPECT_TRUE(status.ok()) << "the bystander: " << status.message();
    rank.close();
    return 0;
}

void expect_ready(ForkedPeers& peers, const char* whose) {
    for (int rank = 0; rank < peers.size(); ++rank) {
        const auto ready = peers.receive(rank);
        ASSERT_TRUE(ready && to_text(*ready) == "ready") << whose << ", rank " << rank;
    }
}

TEST(RightsOfASync, AReadPastARegionFailsThatSyncOnly) {
    const BedOptions options = failing_sync_options(SourceKind::kResident);
    BedOptions calm = options;
    calm.settings.heartbeat_dead_after = bed_settings().heartbeat_dead_after;
    const BedModel model(options);
    const SocketMesh mesh(4);
    const SocketMesh mesh_beside(4);
    ForkedPeers beside(
        4, [&](PeerChannel& channel) { return sync_beside(channel, mesh_beside, calm, model); }, kFailingSyncLimit);
    expect_ready(beside, "the bystander");
    ForkedPeers peers(
        4,
        [&](PeerChannel& channel) {
            return sync_until_failure(channel, mesh, options, model,
                                      channel.rank() == 0 ? open_half_registering : ucx_factory(Network::kUcxRc),
                                      /*good=*/0);
        },
        kFailingSyncLimit);
    expect_ready(peers, "the violator");
    for (int rank = 0; rank < 4; ++rank) {
        beside.send(rank, {});
    }
    for (int rank = 0; rank < 4; ++rank) {
        const auto ended = peers.receive(rank);
        ASSERT_TRUE(ended) << "rank " << rank << " did not end: " << peers.wait(rank).describe();
        std::istringstream words(to_text(*ended));
        int code = 0;
        int peer = -1;
        std::uint64_t version = 0;
        words >> code >> peer >> version;
        EXPECT_NE(code, static_cast<int>(StatusCode::kOk)) << to_text(*ended);
        EXPECT_GE(peer, 0) << "nobody is named: " << to_text(*ended);
        EXPECT_EQ(version, 1u) << to_text(*ended);
        if (rank == 2) {
            std::string message;
            std::getline(words >> std::ws, message);
            print_measured("a read past a region ends its own sync, and no other one: {}", message);
        }
    }
    EXPECT_TRUE(peers.wait_all_ok());
    EXPECT_TRUE(beside.wait_all_ok()) << "the bystander";
    expect_good_sync(options, model, Network::kUcxRc, "a read past a region");
}

}  // namespace
}  // namespace sluice::test

// NCCL between processes with a GPU each: what it moves, and that every wait for it ends.
#include "runtime/cuda/nccl_group.h"

#include "runtime/cuda/cuda_device.h"
#include "tests/cuda/gpu_count.h"
#include "tests/exchange/socket_bootstrap.h"
#include "tests/support/forked_peers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>
#include <unistd.h>
#include <vector>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Transfer = CollectiveGroup::Transfer;

constexpr int kRanks = 2;
constexpr std::int64_t kBytes = 5'000'001;  // no multiple of anything

/// A rank with its device and its place in the group.
struct Member {
    Member(PeerChannel& channel, const SocketMesh& mesh)
        : bootstrap(mesh.bootstrap(channel.rank())), rank(channel.rank()) {}

    void open() {
        auto opened = open_cuda_device(rank, 1);
        ASSERT_TRUE(opened.ok()) << opened.status().message();
        device = std::move(*opened);
        const auto id = make_nccl_group_id();
        ASSERT_TRUE(id.ok()) << id.status().message();
        const auto ids = bootstrap->all_gather(*id, Deadline::after(20s));
        ASSERT_TRUE(ids.ok());
        auto group_made = open_nccl_group(ids->front(), rank, kRanks, rank, Deadline::after(30s));
        ASSERT_TRUE(group_made.ok()) << group_made.status().message();
        group = std::move(*group_made);
        auto buffer = device->allocate(2 * kBytes);
        ASSERT_TRUE(buffer.ok());
        memory.emplace(std::move(*buffer));
    }

    [[nodiscard]] int peer() const { return 1 - rank; }
    [[nodiscard]] Status exchange(Deadline deadline) const {
        const Transfer sent{peer(), memory->data(), kBytes};
        const Transfer received{peer(), memory->data() + kBytes, kBytes};
        return group->exchange({&sent, 1}, {&received, 1}, deadline);
    }

    std::unique_ptr<Bootstrap> bootstrap;
    int rank;
    std::unique_ptr<Device> device;
    std::optional<Buffer> memory;
    std::unique_ptr<NcclGroup> group;
};

class NcclGroupTest : public testing::Test {
protected:
    void SetUp() override {
        if (const std::string why = why_not_gpus(kRanks); !why.empty()) {
            GTEST_SKIP() << why;
        }
    }

    void run(const std::function<void(Member&)>& body) {
        const SocketMesh mesh(kRanks);
        ForkedPeers peers(
            kRanks,
            [&](PeerChannel& channel) {
                Member member(channel, mesh);
                member.open();
                if (!testing::Test::HasFatalFailure()) {
                    body(member);
                }
                return testing::Test::HasFailure() ? ForkedPeers::kFailedExpectations : 0;
            },
            60s);
        check(peers);
    }
    virtual void check(ForkedPeers& peers) { EXPECT_TRUE(peers.wait_all_ok()); }
};

TEST_F(NcclGroupTest, EveryByteComesOver) {
    run([](Member& member) {
        for (int round = 0; round < 3; ++round) {
            const auto value = [round](int rank, std::size_t i) {
                return static_cast<std::byte>(i * 2654435761u + static_cast<unsigned>(7 * rank + round));
            };
            std::vector<std::byte> bytes(kBytes), expected(kBytes);
            for (std::size_t i = 0; i < bytes.size(); ++i) {
                bytes[i] = value(member.rank, i);
                expected[i] = value(member.peer(), i);
            }
            ASSERT_TRUE(member.device->copy(member.memory->data(), bytes.data(), bytes.size(), 0).ok());
            const Status status = member.exchange(Deadline::after(20s));
            ASSERT_TRUE(status.ok()) << status.message();
            ASSERT_TRUE(member.device->copy(bytes.data(), member.memory->data() + kBytes, bytes.size(), 0).ok());
            EXPECT_EQ(bytes, expected);
        }
    });
}

TEST_F(NcclGroupTest, CollectivesBringEveryByte) {
    run([](Member& member) {
        const auto value = [](int rank, std::size_t i) {
            return static_cast<std::byte>(i * 2654435761u + static_cast<unsigned>(11 * rank));
        };
        std::vector<std::byte> bytes(2 * kBytes), expected(2 * kBytes);
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            const int owner = i < kBytes ? 0 : 1;
            bytes[i] = owner == member.rank ? value(owner, i) : std::byte{0xAB};
            expected[i] = value(owner, i);
        }
        std::byte* const data = member.memory->data();
        ASSERT_TRUE(member.device->copy(data, bytes.data(), bytes.size(), 0).ok());
        Status status = member.group->all_gather(data, kBytes, Deadline::after(20s));
        ASSERT_TRUE(status.ok()) << status.message();
        status = member.group->wait(Deadline::after(20s));
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_TRUE(member.device->copy(bytes.data(), data, bytes.size(), 0).ok());
        EXPECT_EQ(bytes, expected);

        // From the second rank, whose bytes are others.
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            bytes[i] = value(member.rank + 2, i);
            expected[i] = value(3, i);
        }
        ASSERT_TRUE(member.device->copy(data, bytes.data(), bytes.size(), 0).ok());
        status = member.group->broadcast(data, 2 * kBytes, 1, Deadline::after(20s));
        ASSERT_TRUE(status.ok()) << status.message();
        status = member.group->wait(Deadline::after(20s));
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_TRUE(member.device->copy(bytes.data(), data, bytes.size(), 0).ok());
        EXPECT_EQ(bytes, expected);
    });
}

TEST_F(NcclGroupTest, APeerThatStaysAwayEndsTheWaitAtItsDeadline) {
    run([](Member& member) {
        if (member.rank == 0) {
            const auto begin = Clock::now();
            EXPECT_EQ(member.exchange(Deadline::after(1s)).code(), StatusCode::kDeadlineExceeded);
            EXPECT_LT(Clock::now() - begin, 10s);
            EXPECT_EQ(member.exchange(Deadline::after(1s)).code(), StatusCode::kAborted) << "it was given up";
        }
        ASSERT_TRUE(member.bootstrap->barrier(Deadline::after(30s)).ok());
    });
}

TEST_F(NcclGroupTest, AbortEndsTheWait) {
    run([](Member& member) {
        if (member.rank == 0) {
            std::thread other([&] {
                std::this_thread::sleep_for(500ms);
                member.group->abort();
            });
            const auto begin = Clock::now();
            EXPECT_EQ(member.exchange(Deadline::after(50s)).code(), StatusCode::kAborted);
            EXPECT_LT(Clock::now() - begin, 10s);
            other.join();
        }
        ASSERT_TRUE(member.bootstrap->barrier(Deadline::after(30s)).ok());
    });
}

class KilledPeerTest : public NcclGroupTest {
protected:
    void check(ForkedPeers& peers) override {
        EXPECT_TRUE(peers.wait(0).ok());
        EXPECT_EQ(peers.wait(1).signal, SIGKILL);
    }
};

TEST_F(KilledPeerTest, EndsInAnErrorAndLeavesTheDeviceUsable) {
    run([](Member& member) {
        ASSERT_TRUE(member.exchange(Deadline::after(20s)).ok());
        if (member.rank == 1) {
            ::kill(::getpid(), SIGKILL);
        }
        const auto begin = Clock::now();
        EXPECT_FALSE(member.exchange(Deadline::after(5s)).ok());
        EXPECT_LT(Clock::now() - begin, 20s);
        EXPECT_TRUE(member.device->fill(member.memory->data(), std::byte{1}, kBytes, 0).ok());
    });
}

}  // namespace
}  // namespace sluice::test

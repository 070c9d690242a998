// What happens when processes die, hang or send nonsense. The peers are forked before UCX starts anywhere; the test's own
// process never starts it.
#include "tests/support/measured.h"
#include "tests/transport/reading_peers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

Blob time_blob(Clock::time_point time) {
    const std::int64_t count = time.time_since_epoch().count();
    Blob blob(sizeof(count));
    std::memcpy(blob.data(), &count, sizeof(count));
    return blob;
}
Clock::time_point to_time(const Blob& blob) {
    std::int64_t count = 0;
    std::memcpy(&count, blob.data(), sizeof(count));
    return Clock::time_point(Clock::duration(count));
}

class PeerDeathTest : public ::testing::TestWithParam<Network> {
protected:
    void SetUp() override { content(); }
};

INSTANTIATE_TEST_SUITE_P(Networks, PeerDeathTest, ::testing::ValuesIn(ucx_networks()),
                         [](const auto& param) { return to_string(param.param); });

// Each round: both read from each other, one is killed at a random moment; the other sees each of its gets end once, is
// told once, and closes.
TEST_P(PeerDeathTest, ThePeerOfAKilledProcessSeesEveryGetEndOnceAndIsToldOnce) {
    std::mt19937 random(5);
    const Network network = GetParam();
    const int rounds = network == Network::kUcxRc ? 20 : 10;
    Clock::duration slowest{};
    for (int round = 0; round < rounds; ++round) {
        ForkedPeers peers(
            2,
            [network](PeerChannel& channel) {
                Node node(channel, network);
                Reading reading(node, 1 - channel.rank());
                channel.send_to_test({});
                if (channel.rank() == 1) {
                    channel.receive_from_test();  // Killed while it waits here.
                    return 1;
                }
                EXPECT_TRUE(reading.ended.wait_for()) << "gets from a dead peer hang";
                channel.send_to_test(time_blob(reading.first_failure));
                const auto start = Clock::now();
                while (node.lost.load() == 0 && Clock::now() - start < kPatience) {
                    std::this_thread::sleep_for(1ms);
                }
                node.loop.run_and_wait([&] { EXPECT_EQ(reading.started, reading.succeeded + reading.failed); });
                EXPECT_EQ(node.lost.load(), 1);
                channel.send_to_test(time_blob(Clock::now()));
                CountedCompletion closed;
                node.loop.run_and_wait([&] { node.endpoint->close(true, closed); });
                EXPECT_TRUE(closed.wait_for(1, kPatience / 20));
                EXPECT_EQ(node.lost.load(), 1);
                return 0;
            },
            kPeersLimit);
        peers.receive(0);
        peers.receive(1);
        std::this_thread::sleep_for(
            std::chrono::microseconds(2000 + random() % (network == Network::kUcxRc ? 400'000 : 20'000)));
        const auto killed = Clock::now();
        peers.kill(1);
        const auto failed = peers.receive(0);
        const auto told = peers.receive(0);
        ASSERT_TRUE(failed && told) << "round " << round << ": " << peers.wait(0).describe();
        EXPECT_LT(to_time(*failed) - killed, death_noticed_within(network));
        EXPECT_LT(to_time(*told) - killed, death_noticed_within(network));
        slowest = std::max(slowest, std::max(to_time(*failed), to_time(*told)) - killed);
        ASSERT_TRUE(peers.wait_all_ok({1})) << "round " << round;
    }
    print_measured(
        "{} kills of a peer over {}: every get ended once, with its bytes or an error; told after {:.2f} s at most",
        rounds, to_string(network), seconds(slowest));
}

TEST_P(PeerDeathTest, TheDeathOfAnIdlePeerIsNoticed) {
    const Network network = GetParam();
    ForkedPeers peers(
        2,
        [network](PeerChannel& channel) {
            Node node(channel, network);
            channel.send_to_test({});
            if (channel.rank() == 1) {
                channel.receive_from_test();
                return 1;
            }
            const auto start = Clock::now();
            while (node.lost.load() == 0 && Clock::now() - start < kPatience) {
                std::this_thread::sleep_for(1ms);
            }
            channel.send_to_test(time_blob(Clock::now()));
            EXPECT_EQ(node.lost.load(), 1);
            return 0;
        },
        kPeersLimit);
    peers.receive(0);
    peers.receive(1);
    std::this_thread::sleep_for(50ms);
    const auto killed = Clock::now();
    peers.kill(1);
    const auto told = peers.receive(0);
    ASSERT_TRUE(told);
    EXPECT_LT(to_time(*told) - killed, death_noticed_within(network));
    EXPECT_TRUE(peers.wait_all_ok({1}));
}

TEST_P(PeerDeathTest, AStoppedOwnerServesOneSidedGetsOnlyUntilItGoesOn) {
    const Network network = GetParam();
    ForkedPeers peers(
        2,
        [network](PeerChannel& channel) {
            Node node(channel, network);
            channel.send_to_test({});
            if (channel.rank() == 1) {
                channel.receive_from_test();
                return 0;
            }
            channel.receive_from_test();  // The owner is stopped now.
            CountedCompletion done;
            node.get(3, done);
            transport::LinkInfo link;
            node.loop.run_and_wait([&] { link = node.endpoint->link(); });
            EXPECT_EQ(link.transport, link_name(network));
            EXPECT_EQ(link.link_class, expected_class(network));
            if (expected_class(network) == transport::LinkClass::kOneSided) {
                EXPECT_TRUE(done.wait_for()) << "a one-sided get waits for its owner";
                channel.send_to_test({});
            } else {
                EXPECT_FALSE(done.wait_for(1, 200ms));
                channel.send_to_test({});
                EXPECT_TRUE(done.wait_for());
            }
            EXPECT_TRUE(done.status().ok());
            EXPECT_TRUE(std::equal(node.landing.begin() + 3 * kPiece, node.landing.begin() + 4 * kPiece,
                                   node.memory.begin() + 3 * kPiece));
            return 0;
        },
        kPeersLimit);
    peers.receive(0);
    peers.receive(1);
    peers.kill(1, SIGSTOP);
    std::this_thread::sleep_for(20ms);
    peers.send(0, {});
    peers.receive(0);
    peers.kill(1, SIGCONT);
    peers.wait(0);
    peers.send(1, {});
    EXPECT_TRUE(peers.wait_all_ok());
}

TEST_P(PeerDeathTest, AForcedCloseAbandonsAStoppedOwner) {
    const Network network = GetParam();
    ForkedPeers peers(
        2,
        [network](PeerChannel& channel) {
            Node node(channel, network);
            channel.send_to_test({});
            if (channel.rank() == 1) {
                channel.receive_from_test();
                return 0;
            }
            channel.receive_from_test();
            std::deque<CountedCompletion> gets(kPieces);
            CountedCompletion closed;
            node.loop.run_and_wait([&] {
                for (std::size_t i = 0; i < kPieces; ++i) {
                    node.get_on_loop(i, gets[i]);
                }
                node.endpoint->close(true, closed);
            });
            EXPECT_TRUE(closed.wait_for(1, kPatience / 10)) << "closing by force waits for the peer";
            for (const CountedCompletion& get : gets) {
                EXPECT_EQ(get.count(), 1);
            }
            return 0;
        },
        kPeersLimit);
    peers.receive(0);
    peers.receive(1);
    peers.kill(1, SIGSTOP);
    std::this_thread::sleep_for(20ms);
    peers.send(0, {});
    EXPECT_TRUE(peers.wait(0).ok());
    peers.kill(1);
}

// The TCP ports on which process `pid` listens: the inodes of its sockets, looked up in the kernel's table.
std::vector<std::uint16_t> listening_ports(pid_t pid) {
    std::set<std::string> inodes;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
        std::error_code error;
        const std::string link = std::filesystem::read_symlink(entry.path(), error).string();
        if (link.rfind("socket:[", 0) == 0) {
            inodes.insert(link.substr(8, link.size() - 9));
        }
    }
    std::vector<std::uint16_t> ports;
    std::ifstream table("/proc/" + std::to_string(pid) + "/net/tcp");
    std::string line;
    std::getline(table, line);
    while (std::getline(table, line)) {
        std::istringstream words(line);
        std::string word[10];
        for (std::string& w : word) {
            words >> w;
        }
        if (word[3] == "0A" && inodes.contains(word[9])) {  // Listening.
            ports.push_back(static_cast<std::uint16_t>(std::stoul(word[1].substr(word[1].find(':') + 1), nullptr, 16)));
        }
    }
    return ports;
}

void send_noise(std::uint16_t port, std::mt19937& random) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_GE(socket, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
        std::vector<char> noise(1 + random() % 5000);
        std::ranges::generate(noise, [&] { return static_cast<char>(random()); });
        // What is not taken because the other side has hung up is no loss.
        [[maybe_unused]] const auto sent = ::send(socket, noise.data(), noise.size(), MSG_NOSIGNAL);
    }
    ::close(socket);
}

TEST_P(PeerDeathTest, NoiseOnListeningPortsHarmsNothing) {
    const Network network = GetParam();
    ForkedPeers peers(
        2,
        [network](PeerChannel& channel) {
            Node node(channel, network);
            channel.send_to_test({});
            channel.receive_from_test();  // The noise is over.
            CountedCompletion gets;
            CountedCompletion sent;
            const Blob message(100);
            node.loop.run_and_wait([&] {
                for (std::size_t i = 0; i < kPieces; ++i) {
                    node.get_on_loop(i, gets);
                }
                node.endpoint->send(message, {}, sent);
            });
            EXPECT_TRUE(gets.wait_for(kPieces));
            EXPECT_EQ(gets.succeeded(), static_cast<int>(kPieces));
            EXPECT_TRUE(sent.wait_for());
            EXPECT_EQ(node.landing, node.memory);
            EXPECT_EQ(node.lost.load(), 0);
            channel.barrier();
            const auto start = Clock::now();
            while (node.messages.load() == 0 && Clock::now() - start < kPatience) {
                std::this_thread::sleep_for(1ms);
            }
            EXPECT_EQ(node.messages.load(), 1);
            channel.barrier();
            return 0;
        },
        kPeersLimit);
    peers.receive(0);
    peers.receive(1);
    std::mt19937 random(9);
    for (const int rank : {0, 1}) {
        const auto ports = listening_ports(peers.pid(rank));
        EXPECT_FALSE(ports.empty()) << "TCP carries the messages of both networks";
        for (const std::uint16_t port : ports) {
            for (int i = 0; i < 100; ++i) {
                send_noise(port, random);
            }
        }
    }
    peers.send(0, {});
    peers.send(1, {});
    EXPECT_TRUE(peers.wait_all_ok());
}

}  // namespace
}  // namespace sluice::test

// What happens when processes die, hang or send nonsense. The peers are forked before UCX starts anywhere; the test's own
// process never starts it.
#include "tests/support/forked_peers.h"
#include "tests/transport/network.h"
#include "transport/ucx/ucx_transport.h"

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
using transport::Access;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kPiece = 1 << 20;
constexpr std::size_t kPieces = 8;

// Made once, before any fork: children copy it, which is much faster than making it.
const std::vector<std::byte>& content() {
    static const std::vector<std::byte> bytes = pattern_bytes(1, kPiece * kPieces);
    return bytes;
}

// A transport with readable memory, connected to the other peer.
struct Node {
    Node(PeerChannel& channel, Network network) : on_node(channel.rank()), loop("node"), memory(content()) {
        Blob mine;
        loop.run_and_wait([&] {
            auto opened = transport::open_ucx_transport(loop, ucx_options(network));
            ASSERT_TRUE(opened.ok()) << opened.status().message();
            transport = std::move(opened).value();
            auto readable = transport->register_memory(memory, MemoryKind::kHost, Access::kRemoteRead);
            ASSERT_TRUE(readable.ok()) << readable.status().message();
            source = std::move(readable).value();
            auto writable = transport->register_memory(landing, MemoryKind::kHost, Access::kLocal);
            ASSERT_TRUE(writable.ok()) << writable.status().message();
            target = std::move(writable).value();
            transport->set_message_handler([this](auto, auto) { messages.fetch_add(1); });
        });
        // Memory lies elsewhere in each process: address, key and its place go around.
        const auto addresses = channel.all_gather([&] {
            loop.run_and_wait([&] { mine = transport->address(); });
            return mine;
        }());
        const auto keys = channel.all_gather(source->packed_key());
        const std::uint64_t here = reinterpret_cast<std::uint64_t>(memory.data());
        Blob place(sizeof(here));
        std::memcpy(place.data(), &here, sizeof(here));
        const auto places = channel.all_gather(place);
        const std::size_t other = channel.rank() == 0 ? 1 : 0;
        std::memcpy(&remote, places[other]->data(), sizeof(remote));
        loop.run_and_wait([&] {
            auto connected = transport->connect(*addresses[other], static_cast<int>(other),
                                                [this](const Status&) { lost.fetch_add(1); });
            ASSERT_TRUE(connected.ok()) << connected.status().message();
            endpoint = std::move(connected).value();
            auto unpacked = endpoint->unpack_key(*keys[other]);
            ASSERT_TRUE(unpacked.ok()) << unpacked.status().message();
            key = std::move(unpacked).value();
        });
        // Both sides have read from each other before anything happens.
        CountedCompletion first;
        get(0, first);
        EXPECT_TRUE(first.wait_for());
        EXPECT_TRUE(first.status().ok()) << first.status().message();
        channel.barrier();
    }

    ~Node() {
        CountedCompletion closed;
        loop.run_and_wait([&] { endpoint->close(true, closed); });
        EXPECT_TRUE(closed.wait_for());
        loop.run_and_wait([&] {
            key.reset();
            endpoint.reset();
            source.reset();
            target.reset();
            transport.reset();
        });
    }

    // Piece i, from any thread.
    void get(std::size_t i, transport::Completion& completion) {
        loop.run_and_wait([&] { get_on_loop(i, completion); });
    }
    void get_on_loop(std::size_t i, transport::Completion& completion) {
        endpoint->get(landing.data() + i * kPiece, kPiece, *target, remote + i * kPiece, *key, completion);
    }

    // Threads stay on the node on which they are made.
    struct OnNode {
        explicit OnNode(int node) { enter_node(node); }
    } on_node;
    EventLoop loop;
    std::vector<std::byte> memory;
    std::vector<std::byte> landing = std::vector<std::byte>(kPiece * kPieces);
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::MemoryRegion> source;
    std::unique_ptr<transport::MemoryRegion> target;
    std::unique_ptr<transport::Endpoint> endpoint;
    std::unique_ptr<transport::RemoteKey> key;
    std::uint64_t remote = 0;
    std::atomic<int> messages{0};
    std::atomic<int> lost{0};
};

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

// Reads pieces for ever, a window at a time, and counts how each one ends. Starts the next from the completion.
struct Reading {
    struct Slot final : transport::Completion {
        void complete(const Status& status) override {
            ASSERT_TRUE(in_flight) << "told twice";
            in_flight = false;
            if (status.ok()) {
                ++reading->succeeded;
            } else {
                EXPECT_EQ(status.peer(), reading->peer);
                ++reading->failed;
                reading->first_failure = std::min(reading->first_failure, Clock::now());
                reading->stopped = true;
            }
            if (!reading->stopped) {
                start();
            } else if (reading->in_flight() == 0) {
                reading->ended.complete(ok_status());
            }
        }
        void start() {
            in_flight = true;
            ++reading->started;
            reading->node->get_on_loop(index, *this);
        }
        Reading* reading = nullptr;
        std::size_t index = 0;
        bool in_flight = false;
    };

    Reading(Node& reading_node, int from) : node(&reading_node), peer(from) {
        node->loop.run_and_wait([&] {
            for (std::size_t i = 0; i < slots.size(); ++i) {
                slots[i].reading = this;
                slots[i].index = i;
                slots[i].start();
            }
        });
    }
    [[nodiscard]] std::ptrdiff_t in_flight() const {
        return std::ranges::count_if(slots, [](const Slot& slot) { return slot.in_flight; });
    }

    Node* node;
    int peer;
    std::array<Slot, 8> slots;
    int started = 0;
    int succeeded = 0;
    int failed = 0;
    bool stopped = false;
    Clock::time_point first_failure = Clock::time_point::max();
    CountedCompletion ended;
};

class PeerDeathTest : public ::testing::TestWithParam<Network> {
protected:
    void SetUp() override { content(); }
};

INSTANTIATE_TEST_SUITE_P(Networks, PeerDeathTest, ::testing::ValuesIn(ucx_networks()),
                         [](const auto& param) { return to_string(param.param); });

// Each round: both read from each other, one is killed at a random moment; the other sees each of its gets end once, is
// told once, and closes. Ten times over each network.
TEST_P(PeerDeathTest, ThePeerOfAKilledProcessSeesEveryGetEndOnceAndIsToldOnce) {
    std::mt19937 random(5);
    const Network network = GetParam();
    for (int round = 0; round < 10; ++round) {
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
        std::this_thread::sleep_for(std::chrono::microseconds(2000 + random() % 20000));
        const auto killed = Clock::now();
        peers.kill(1);
        const auto failed = peers.receive(0);
        const auto told = peers.receive(0);
        ASSERT_TRUE(failed && told) << "round " << round << ": " << peers.wait(0).describe();
        EXPECT_LT(to_time(*failed) - killed, death_noticed_within(network));
        EXPECT_LT(to_time(*told) - killed, death_noticed_within(network));
        ASSERT_TRUE(peers.wait_all_ok({1})) << "round " << round;
    }
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
            if (node.endpoint->link().link_class == transport::LinkClass::kOneSided) {
                EXPECT_TRUE(done.wait_for());
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

#include "transport/transport.h"

#include "tests/services/counted_new.h"
#include "tests/transport/network.h"
#include "transport/fake/fake_transport.h"
#include "transport/ucx/ucx_key_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <utility>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using transport::Access;
using transport::Endpoint;
using transport::LinkClass;
using transport::MemoryRegion;
using transport::RemoteKey;
using transport::Transport;

// One process's part: a loop with a transport, and what it received.
struct Side {
    explicit Side(const std::string& name) : loop(name) {}
    void on_loop(const std::function<void()>& work) { loop.run_and_wait(work); }

    EventLoop loop;
    std::unique_ptr<Transport> transport;
    transport::FakeId fake_id = 0;
};

class TransportTest : public ::testing::TestWithParam<Network> {
protected:
    void SetUp() override {
        fabric.set_default_link({.latency = 0ns, .bytes_per_second = 0, .link_class = expected_class(GetParam())});
        for (Side* side : {&owner, &reader}) {
            side->on_loop([&] {
                if (is_ucx(GetParam())) {
                    auto opened = transport::open_ucx_transport(side->loop, ucx_options(GetParam()));
                    ASSERT_TRUE(opened.ok()) << opened.status().message();
                    side->transport = std::move(opened).value();
                } else {
                    auto opened = fabric.open(side->loop);
                    side->transport = std::move(opened.transport);
                    side->fake_id = opened.id;
                }
            });
            ASSERT_NE(side->transport, nullptr);
        }
        owner.on_loop([&] { owner_address = owner.transport->address(); });
        reader.on_loop([&] { reader_address = reader.transport->address(); });
    }

    void TearDown() override {
        close_endpoint(reader, to_owner);
        close_endpoint(owner, to_reader);
        reader.on_loop([&] {
            target.reset();
            reader.transport.reset();
        });
        owner.on_loop([&] {
            source.reset();
            owner.transport.reset();
        });
    }

    void close_endpoint(Side& side, std::unique_ptr<Endpoint>& endpoint) {
        if (endpoint != nullptr) {
            CountedCompletion closed;
            side.on_loop([&] {
                key.reset();
                endpoint->close(true, closed);
            });
            EXPECT_TRUE(closed.wait_for());
            side.on_loop([&] { endpoint.reset(); });
        }
    }

    std::unique_ptr<Endpoint> connect(Side& from, const std::vector<std::byte>& address) {
        std::unique_ptr<Endpoint> endpoint;
        from.on_loop([&] {
            auto made = from.transport->connect(address, 7, [this](const Status& status) {
                ++lost;
                EXPECT_FALSE(status.ok());
                EXPECT_EQ(status.peer(), 7);
            });
            ASSERT_TRUE(made.ok()) << made.status().message();
            endpoint = std::move(made).value();
        });
        return endpoint;
    }

    // Registers `source_bytes` at the owner and as much at the reader, and connects the reader to the owner.
    void connect_for_gets(std::size_t bytes) {
        source_bytes = pattern_bytes(1, bytes);
        target_bytes.assign(bytes, std::byte{0xEE});
        std::vector<std::byte> packed;
        owner.on_loop([&] {
            auto region = owner.transport->register_memory(source_bytes, MemoryKind::kHost, Access::kRemoteRead);
            ASSERT_TRUE(region.ok()) << region.status().message();
            source = std::move(region).value();
            packed = source->packed_key();
        });
        reader.on_loop([&] {
            auto region = reader.transport->register_memory(target_bytes, MemoryKind::kHost, Access::kLocal);
            ASSERT_TRUE(region.ok()) << region.status().message();
            target = std::move(region).value();
            EXPECT_TRUE(target->packed_key().empty());
        });
        to_owner = connect(reader, owner_address);
        reader.on_loop([&] {
            auto unpacked = to_owner->unpack_key(packed);
            ASSERT_TRUE(unpacked.ok()) << unpacked.status().message();
            key = std::move(unpacked).value();
        });
    }

    [[nodiscard]] std::uint64_t remote(std::size_t offset) const {
        return reinterpret_cast<std::uint64_t>(source_bytes.data()) + offset;
    }

    // On the reader's loop.
    void get(std::size_t to, std::size_t size, std::size_t from, transport::Completion& completion) {
        to_owner->get(target_bytes.data() + to, size, *target, remote(from), *key, completion);
    }

    // After this the link is known.
    void get_once() {
        CountedCompletion done;
        reader.on_loop([&] { get(0, 1, 0, done); });
        ASSERT_TRUE(done.wait_for());
        ASSERT_TRUE(done.status().ok()) << done.status().message();
    }

    transport::FakeFabric fabric;  // Before the loops: it outlives them.
    Side owner{"owner"};
    Side reader{"reader"};
    std::vector<std::byte> owner_address;
    std::vector<std::byte> reader_address;
    std::vector<std::byte> source_bytes;
    std::vector<std::byte> target_bytes;
    std::unique_ptr<MemoryRegion> source;
    std::unique_ptr<MemoryRegion> target;
    std::unique_ptr<Endpoint> to_owner;
    std::unique_ptr<Endpoint> to_reader;
    std::unique_ptr<RemoteKey> key;
    std::atomic<int> lost{0};
};

INSTANTIATE_TEST_SUITE_P(Networks, TransportTest, ::testing::ValuesIn(all_networks()),
                         [](const auto& param) { return to_string(param.param); });

TEST_P(TransportTest, GetsOfEverySizeAndAlignmentBringTheRightBytesAndNoMore) {
    constexpr std::size_t kLargest = std::size_t{64} << 20;
    connect_for_gets(kLargest + 64);
    const std::size_t sizes[] = {1,    2,    3,     7,     8,     9,       63,      64,
                                 65,   1000, 4095,  4096,  4097,  65535,   65536,   65537,
                                 8191, 8192, 16384, 70001, 99999, 1 << 20, 3000001, kLargest};
    std::size_t shift = 0;
    for (const std::size_t size : sizes) {
        const std::size_t to = 1 + shift % 13;
        const std::size_t from = shift % 7;
        ++shift;
        CountedCompletion done;
        reader.on_loop([&] {
            std::fill_n(target_bytes.begin(), size + 32, std::byte{0xEE});
            get(to, size, from, done);
        });
        ASSERT_TRUE(done.wait_for()) << size;
        ASSERT_TRUE(done.status().ok()) << done.status().message();
        EXPECT_TRUE(std::equal(target_bytes.begin() + static_cast<std::ptrdiff_t>(to),
                               target_bytes.begin() + static_cast<std::ptrdiff_t>(to + size),
                               source_bytes.begin() + static_cast<std::ptrdiff_t>(from)))
            << size;
        EXPECT_EQ(target_bytes[to - 1], std::byte{0xEE}) << size;
        EXPECT_EQ(target_bytes[to + size], std::byte{0xEE}) << size;
        EXPECT_EQ(done.count(), 1);
    }
}

TEST_P(TransportTest, ManyGetsInFlightEachEndOnce) {
    constexpr std::size_t kPiece = 3001;
    constexpr std::size_t kPieces = 2000;
    connect_for_gets(kPiece * kPieces);
    std::vector<std::size_t> order(kPieces);
    for (std::size_t i = 0; i < kPieces; ++i) {
        order[i] = i;
    }
    std::shuffle(order.begin(), order.end(), std::mt19937(3));
    std::deque<CountedCompletion> done(kPieces);
    reader.on_loop([&] {
        for (const std::size_t i : order) {
            get(i * kPiece, kPiece, i * kPiece, done[i]);
            EXPECT_EQ(done[i].count(), 0) << "told inside of the call that started it";
        }
    });
    for (CountedCompletion& completion : done) {
        ASSERT_TRUE(completion.wait_for());
        EXPECT_TRUE(completion.status().ok()) << completion.status().message();
    }
    reader.on_loop([] {});
    for (CountedCompletion& completion : done) {
        EXPECT_EQ(completion.count(), 1);
    }
    EXPECT_EQ(target_bytes, source_bytes);
}

TEST_P(TransportTest, MessagesArriveWholeAndInOrder) {
    constexpr std::uint64_t kMessages = 3000;
    std::size_t limit = 0;
    std::uint64_t next = 0;
    std::promise<void> all;
    const auto header_size = [](std::uint64_t i) { return std::size_t{8} + i * 7 % 100; };
    const auto payload_size = [&](std::uint64_t i) {
        return i % 3 == 0 ? 0 : i % 50 == 1 ? limit - header_size(i) : std::size_t{i * 37 % 3000};
    };
    reader.on_loop([&] { limit = reader.transport->max_message_bytes(); });
    ASSERT_GE(limit, 4000u);
    owner.on_loop([&] {
        owner.transport->set_message_handler(
            [&](std::span<const std::byte> header, std::span<const std::byte> payload) {
                ASSERT_EQ(header.size(), header_size(next));
                ASSERT_EQ(payload.size(), payload_size(next));
                EXPECT_TRUE(std::ranges::equal(header, pattern_bytes(next, header.size())));
                EXPECT_TRUE(std::ranges::equal(payload, pattern_bytes(next + 1, payload.size())));
                if (++next == kMessages) {
                    all.set_value();
                }
            });
    });
    to_owner = connect(reader, owner_address);
    // Header and payload are read until the completion, so they stay where they are.
    std::vector<std::vector<std::byte>> headers;
    std::vector<std::vector<std::byte>> payloads;
    for (std::uint64_t i = 0; i < kMessages; ++i) {
        headers.push_back(pattern_bytes(i, header_size(i)));
        payloads.push_back(pattern_bytes(i + 1, payload_size(i)));
    }
    CountedCompletion sent;
    reader.on_loop([&] {
        for (std::size_t i = 0; i < kMessages; ++i) {
            to_owner->send(headers[i], payloads[i], sent);
        }
        EXPECT_EQ(sent.count(), 0);
    });
    EXPECT_EQ(all.get_future().wait_for(kPatience), std::future_status::ready);
    EXPECT_TRUE(sent.wait_for(kMessages));
    EXPECT_EQ(sent.succeeded(), static_cast<int>(kMessages));
    EXPECT_EQ(sent.count(), static_cast<int>(kMessages));
}

TEST_P(TransportTest, EmptyMessagesArriveAndTooLargeOnesAreRefused) {
    std::promise<void> arrived;
    owner.on_loop([&] {
        owner.transport->set_message_handler(
            [&](std::span<const std::byte> header, std::span<const std::byte> payload) {
                EXPECT_TRUE(header.empty() && payload.empty());
                arrived.set_value();
            });
    });
    to_owner = connect(reader, owner_address);
    CountedCompletion refused;
    CountedCompletion sent;
    std::vector<std::byte> bytes;
    reader.on_loop([&] {
        bytes.resize(reader.transport->max_message_bytes());
        to_owner->send(std::span(bytes).first(1), bytes, refused);
        to_owner->send({}, {}, sent);
    });
    ASSERT_TRUE(refused.wait_for());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    ASSERT_TRUE(sent.wait_for());
    EXPECT_TRUE(sent.status().ok());
    EXPECT_EQ(arrived.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST_P(TransportTest, AnEmptyRegionHasAKeyThatGivesNoAccess) {
    connect_for_gets(64);
    std::vector<std::byte> packed;
    std::unique_ptr<MemoryRegion> empty;
    owner.on_loop([&] {
        auto region = owner.transport->register_memory({}, MemoryKind::kHost, Access::kRemoteRead);
        ASSERT_TRUE(region.ok()) << region.status().message();
        empty = std::move(region).value();
        EXPECT_EQ(empty->size(), 0u);
        packed = empty->packed_key();
    });
    CountedCompletion done;
    std::unique_ptr<RemoteKey> empty_key;
    reader.on_loop([&] {
        auto unpacked = to_owner->unpack_key(packed);
        ASSERT_TRUE(unpacked.ok()) << unpacked.status().message();
        empty_key = std::move(unpacked).value();
        to_owner->get(target_bytes.data(), 1, *target, remote(0), *empty_key, done);
    });
    ASSERT_TRUE(done.wait_for());
    EXPECT_FALSE(done.status().ok());
    reader.on_loop([&] { empty_key.reset(); });
    owner.on_loop([&] { empty.reset(); });
}

TEST_P(TransportTest, AGetOutsideOfTheRegionIsRefusedAndHarmsNothing) {
    connect_for_gets(4096);
    struct Case {
        std::uint64_t address;
        std::size_t size;
    };
    const Case cases[] = {{remote(4096), 1}, {remote(1), 4096}, {remote(0) - 1, 2}, {~std::uint64_t{0}, 2}, {0, 4096}};
    for (const Case& wrong : cases) {
        CountedCompletion done;
        reader.on_loop([&] { to_owner->get(target_bytes.data(), wrong.size, *target, wrong.address, *key, done); });
        ASSERT_TRUE(done.wait_for());
        EXPECT_EQ(done.status().code(), StatusCode::kInvalidArgument) << done.status().message();
    }
    get_once();
    EXPECT_EQ(lost.load(), 0);
}

TEST_P(TransportTest, MalformedKeysAndAddressesAreRefused) {
    connect_for_gets(4096);
    std::vector<std::byte> packed_key;
    owner.on_loop([&] { packed_key = source->packed_key(); });
    std::mt19937 random(11);
    const auto each_wrong = [&](const std::vector<std::byte>& right,
                                const std::function<void(std::span<std::byte>)>& test) {
        for (std::size_t size = 0; size < right.size(); ++size) {
            std::vector<std::byte> cut(right.begin(), right.begin() + static_cast<std::ptrdiff_t>(size));
            test(cut);
        }
        for (std::size_t i = 0; i < right.size() * 8; ++i) {
            std::vector<std::byte> flipped = right;
            flipped[i / 8] ^= static_cast<std::byte>(1 << i % 8);
            test(flipped);
        }
        std::vector<std::byte> longer = right;
        longer.push_back(std::byte{0});
        test(longer);
        for (int round = 0; round < 200; ++round) {
            std::vector<std::byte> noise(random() % 400);
            std::ranges::generate(noise, [&] { return static_cast<std::byte>(random()); });
            test(noise);
        }
    };
    reader.on_loop([&] {
        each_wrong(packed_key, [&](std::span<std::byte> wrong) { EXPECT_FALSE(to_owner->unpack_key(wrong).ok()); });
        each_wrong(owner_address, [&](std::span<std::byte> wrong) {
            EXPECT_FALSE(reader.transport->connect(wrong, 1, [](const Status&) {}).ok());
        });
        // The right kind of blob in the wrong place.
        EXPECT_FALSE(to_owner->unpack_key(owner_address).ok());
        EXPECT_FALSE(reader.transport->connect(packed_key, 1, [](const Status&) {}).ok());
    });
    get_once();
}

TEST_P(TransportTest, AGracefulCloseWaitsForWhatIsInFlight) {
    connect_for_gets(4 << 20);
    CountedCompletion gets;
    CountedCompletion closed;
    CountedCompletion late;
    reader.on_loop([&] {
        for (std::size_t i = 0; i < 64; ++i) {
            get(i << 16, 1 << 16, i << 16, gets);
        }
        to_owner->close(false, closed);
        EXPECT_EQ(closed.count(), 0);
        get(0, 1, 0, late);
        to_owner->send({}, {}, late);
    });
    ASSERT_TRUE(closed.wait_for());
    EXPECT_EQ(gets.succeeded(), 64);
    EXPECT_EQ(gets.count(), 64);
    EXPECT_EQ(target_bytes, source_bytes);
    ASSERT_TRUE(late.wait_for(2));
    EXPECT_EQ(late.status().code(), StatusCode::kAborted);
    EXPECT_EQ(late.failed(), 2);
    reader.on_loop([&] {
        key.reset();
        to_owner.reset();
    });
    EXPECT_EQ(closed.count(), 1);
    EXPECT_EQ(lost.load(), 0);
}

TEST_P(TransportTest, AForcedCloseEndsWhatIsInFlightAndNothingIsWrittenAfterwards) {
    connect_for_gets(32 << 20);
    get_once();
    CountedCompletion gets;
    CountedCompletion closed;
    reader.on_loop([&] {
        for (std::size_t i = 0; i < 32; ++i) {
            get(i << 20, 1 << 20, i << 20, gets);
        }
        to_owner->close(true, closed);
    });
    ASSERT_TRUE(closed.wait_for());
    EXPECT_EQ(gets.count(), 32);
    reader.on_loop([&] {
        key.reset();
        to_owner.reset();
        std::ranges::fill(target_bytes, std::byte{0x11});
    });
    std::this_thread::sleep_for(20ms);
    reader.on_loop(
        [&] { EXPECT_TRUE(std::ranges::all_of(target_bytes, [](std::byte b) { return b == std::byte{0x11}; })); });
    EXPECT_EQ(gets.count(), 32);
    EXPECT_EQ(closed.count(), 1);
    EXPECT_EQ(lost.load(), 0);
}

TEST_P(TransportTest, AForcedCloseOvertakesAGracefulOne) {
    connect_for_gets(1 << 20);
    get_once();
    std::promise<void> release;
    std::promise<void> blocked;
    std::thread blocker([&] {
        owner.on_loop([&] {
            blocked.set_value();
            release.get_future().wait();
        });
    });
    blocked.get_future().wait();
    CountedCompletion gets;
    CountedCompletion graceful;
    CountedCompletion forced;
    reader.on_loop([&] {
        get(0, 1 << 20, 0, gets);
        to_owner->close(false, graceful);
    });
    if (expected_class(GetParam()) == LinkClass::kEmulated) {
        EXPECT_FALSE(graceful.wait_for(1, 100ms)) << "closed although the owner cannot have answered";
    }
    reader.on_loop([&] { to_owner->close(true, forced); });
    EXPECT_TRUE(forced.wait_for());
    EXPECT_TRUE(graceful.wait_for());
    EXPECT_EQ(gets.count(), 1);
    reader.on_loop([&] {
        key.reset();
        to_owner.reset();
    });
    release.set_value();
    blocker.join();
    EXPECT_EQ(graceful.count() + forced.count(), 2);
}

TEST_P(TransportTest, AMessageHandlerMayCallBackIntoTheTransport) {
    connect_for_gets(4096);
    to_reader = connect(owner, reader_address);
    // The reader asks, the owner answers from its handler, the reader gets from its handler, and tells the owner, whose
    // handler closes its endpoint and opens another one.
    CountedCompletion ends;
    CountedCompletion closed;
    std::promise<void> finished;
    const std::vector<std::byte> ask(1, std::byte{1});
    const std::vector<std::byte> answer(1, std::byte{2});
    const std::vector<std::byte> thanks(1, std::byte{3});
    std::unique_ptr<Endpoint> another;
    struct ThenSend final : transport::Completion {
        void complete(const Status& status) override {
            EXPECT_TRUE(status.ok());
            then();
        }
        std::function<void()> then;
    } got;
    got.then = [&] { to_owner->send(thanks, {}, ends); };
    owner.on_loop([&] {
        owner.transport->set_message_handler([&](std::span<const std::byte> header, std::span<const std::byte>) {
            if (header[0] == ask[0]) {
                to_reader->send(answer, {}, ends);
                return;
            }
            to_reader->close(false, closed);
            auto made = owner.transport->connect(reader_address, 7, [](const Status&) {});
            ASSERT_TRUE(made.ok());
            another = std::move(made).value();
            finished.set_value();
        });
    });
    reader.on_loop([&] {
        reader.transport->set_message_handler(
            [&](std::span<const std::byte>, std::span<const std::byte>) { get(0, 4096, 0, got); });
        to_owner->send(ask, {}, ends);
    });
    ASSERT_EQ(finished.get_future().wait_for(kPatience), std::future_status::ready);
    EXPECT_TRUE(ends.wait_for(3));
    EXPECT_TRUE(closed.wait_for());
    EXPECT_EQ(ends.succeeded(), 3);
    EXPECT_EQ(target_bytes, source_bytes);
    owner.on_loop([&] { to_reader.reset(); });
    close_endpoint(owner, another);
}

// Nor is anything waited for there: another handler would run within the first.
TEST_P(TransportTest, AConnectMayFailInAMessageHandler) {
    if (!is_ucx(GetParam())) {
        GTEST_SKIP() << "the address is one of UCX's";
    }
    auto fields = transport::decode_address(reader_address);
    ASSERT_TRUE(fields.ok());
    auto probe = transport::decode_key(fields->probe_key);
    ASSERT_TRUE(probe.ok());
    probe->size = 63;
    const std::vector<std::byte> small_probe = transport::encode_key(*probe);
    fields->probe_key = small_probe;
    const std::vector<std::byte> wrong = transport::encode_address(*fields);

    constexpr int kMessages = 100;
    int received = 0;
    bool inside = false;
    std::promise<void> all;
    owner.on_loop([&] {
        owner.transport->set_message_handler([&](std::span<const std::byte>, std::span<const std::byte>) {
            EXPECT_FALSE(std::exchange(inside, true)) << "within another one";
            const auto made = owner.transport->connect(wrong, 7, [](const Status&) { ADD_FAILURE() << "never made"; });
            EXPECT_THAT(made.status().message(), ::testing::HasSubstr("its probe has 63 bytes"));
            inside = false;
            if (++received == kMessages) {
                all.set_value();
            }
        });
    });
    to_owner = connect(reader, owner_address);
    CountedCompletion sent;
    reader.on_loop([&] {
        for (int i = 0; i < kMessages; ++i) {
            to_owner->send({}, {}, sent);
        }
    });
    EXPECT_EQ(all.get_future().wait_for(kPatience), std::future_status::ready);
    EXPECT_TRUE(sent.wait_for(kMessages));
}

TEST_P(TransportTest, ACompletionMayStartTheNextGet) {
    connect_for_gets(1 << 20);
    struct Chain final : transport::Completion {
        void complete(const Status& status) override {
            ok = ok && status.ok();
            if (--left > 0) {
                next();
            } else {
                done.set_value();
            }
        }
        int left = 256;
        bool ok = true;
        std::function<void()> next;
        std::promise<void> done;
    } chain;
    chain.next = [&] {
        const std::size_t at = static_cast<std::size_t>(256 - chain.left) * 4096;
        get(at, 4096, at, chain);
    };
    reader.on_loop([&] { chain.next(); });
    ASSERT_EQ(chain.done.get_future().wait_for(kPatience), std::future_status::ready);
    EXPECT_TRUE(chain.ok);
    EXPECT_EQ(target_bytes, source_bytes);
}

TEST_P(TransportTest, TheLinkIsWhatItClaimsToBe) {
    connect_for_gets(1 << 20);
    // Two round trips after the connection is made the link is known.
    transport::LinkInfo link;
    const auto start = std::chrono::steady_clock::now();
    do {
        get_once();
        reader.on_loop([&] { link = to_owner->link(); });
    } while (link.link_class != expected_class(GetParam()) && std::chrono::steady_clock::now() - start < 5s);
    EXPECT_EQ(link.link_class, expected_class(GetParam()));
    EXPECT_EQ(link.transport, link_name(GetParam()));
    EXPECT_EQ(link.max_get_bytes, std::size_t{GetParam() == Network::kUcxRc ? 16U : 1U} << 20);

    // The truth: does a get end while the owner's loop does nothing?
    std::promise<void> release;
    std::promise<void> blocked;
    std::thread blocker([&] {
        owner.on_loop([&] {
            blocked.set_value();
            release.get_future().wait();
        });
    });
    blocked.get_future().wait();
    for (const std::size_t size : {std::size_t{1}, std::size_t{4096}, std::size_t{1} << 20}) {
        CountedCompletion done;
        reader.on_loop([&] { get(0, size, 0, done); });
        if (link.link_class == LinkClass::kOneSided) {
            EXPECT_TRUE(done.wait_for()) << size;
        } else {
            EXPECT_FALSE(done.wait_for(1, 150ms)) << size;
            release.set_value();
            EXPECT_TRUE(done.wait_for()) << size;
            break;
        }
    }
    if (link.link_class == LinkClass::kOneSided) {
        release.set_value();
    }
    blocker.join();
}

TEST_P(TransportTest, MemoryThatIsNotWhatItIsSaidToBeIsRefused) {
    std::vector<std::byte> host(4096);
    owner.on_loop([&] {
        const auto region = owner.transport->register_memory(host, MemoryKind::kCuda, Access::kRemoteRead);
        ASSERT_FALSE(region.ok());
        EXPECT_EQ(region.status().code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(region.status().message(), ::testing::HasSubstr("host"));
        EXPECT_TRUE(owner.transport->register_memory(host, MemoryKind::kPinned, Access::kLocal).ok());
    });
}

TEST_P(TransportTest, TheEndOfAPeerIsToldOnceAndGetsFromItFail) {
    connect_for_gets(1 << 20);
    get_once();
    owner.on_loop([&] {
        source.reset();
        owner.transport.reset();
    });
    const auto start = std::chrono::steady_clock::now();
    while (lost.load() == 0 && std::chrono::steady_clock::now() - start < kPatience) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(lost.load(), 1);
    CountedCompletion gets;
    reader.on_loop([&] {
        get(0, 1 << 20, 0, gets);
        to_owner->send({}, {}, gets);
    });
    ASSERT_TRUE(gets.wait_for(2));
    EXPECT_EQ(gets.failed(), 2);
    EXPECT_EQ(gets.status().code(), StatusCode::kPeerLost);
    EXPECT_EQ(gets.status().peer(), 7);
    close_endpoint(reader, to_owner);
    EXPECT_EQ(lost.load(), 1);
}

TEST_P(TransportTest, NothingIsToldAboutAPeerAfterClose) {
    connect_for_gets(1 << 20);
    get_once();
    CountedCompletion closed;
    reader.on_loop([&] {
        to_owner->close(false, closed);
        key.reset();
    });
    owner.on_loop([&] {
        source.reset();
        owner.transport.reset();
    });
    ASSERT_TRUE(closed.wait_for());
    std::this_thread::sleep_for(50ms);
    reader.on_loop([&] { to_owner.reset(); });
    EXPECT_EQ(lost.load(), 0);
    EXPECT_EQ(closed.count(), 1);
}

TEST_P(TransportTest, SteadyStateAllocatesNothing) {
    connect_for_gets(1 << 20);
    to_reader = connect(owner, reader_address);
    const std::vector<std::byte> message(100);
    std::atomic<int> received{0};
    owner.on_loop([&] {
        owner.transport->set_message_handler(
            [&](std::span<const std::byte>, std::span<const std::byte>) { received.fetch_add(1); });
    });
    CountedCompletion ends;
    int expected = 0;
    struct Round final : LoopTask {
        void run() override { work(); }
        std::function<void()> work;
    } round;
    round.work = [&] {
        for (std::size_t i = 0; i < 16; ++i) {
            get(i << 16, 1 << 16, i << 16, ends);
            to_owner->send(message, message, ends);
        }
    };
    const auto run_round = [&] {
        reader.loop.post(round);
        expected += 32;
        ASSERT_TRUE(ends.wait_for(expected));
        while (received.load() < expected / 2) {
            std::this_thread::sleep_for(100us);
        }
    };
    for (int i = 0; i < 20; ++i) {
        run_round();
    }
    const AllocationCount allocations;
    for (int i = 0; i < 50; ++i) {
        run_round();
    }
    EXPECT_EQ(allocations.so_far(), 0);
    EXPECT_EQ(ends.succeeded(), expected);
}

}  // namespace
}  // namespace sluice::test

// A peer that speaks UCX, but nothing else as it should.
#include "tests/transport/network.h"
#include "transport/ucx/served_gets.h"
#include "transport/ucx/ucx_context.h"
#include "transport/ucx/ucx_key_format.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/ucx_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace sluice::test {
namespace {

using transport::Access;

// Sends active messages of any content. On the test's own thread.
class HostilePeer {
public:
    HostilePeer()
        : context_(transport::UcxContext::open(ucx_options(Network::kUcxTcp).settings).value()),
          worker_(transport::UcxWorker::open(context_.handle()).value()) {
        EXPECT_TRUE(worker_.set_message_handler(transport::kServedAnswerId, on_answer, this).ok());
    }
    ~HostilePeer() {
        ucp_request_param_t params{};
        params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        params.flags = UCP_EP_CLOSE_FLAG_FORCE;
        finish(ucp_ep_close_nbx(endpoint_, &params));
    }
    HostilePeer(const HostilePeer&) = delete;
    HostilePeer& operator=(const HostilePeer&) = delete;

    void connect(const std::vector<std::byte>& address) {
        const auto fields = transport::decode_address(address);
        ASSERT_TRUE(fields.ok());
        ucp_ep_params_t params{};
        params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
        params.address = reinterpret_cast<const ucp_address_t*>(fields.value().ucx.data());
        params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
        ASSERT_EQ(ucp_ep_create(worker_.handle(), &params, &endpoint_), UCS_OK);
    }

    void send(unsigned id, std::span<const std::byte> header, std::span<const std::byte> payload, unsigned flags) {
        ucp_request_param_t params{};
        params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        params.flags = flags;
        finish(ucp_am_send_nbx(endpoint_, id, header.data(), header.size(), payload.data(), payload.size(), &params));
    }

    void progress() { ucp_worker_progress(worker_.handle()); }
    /// Answers to requests, by status.
    std::map<ucs_status_t, int> answers;

private:
    void finish(ucs_status_ptr_t request) {
        if (UCS_PTR_IS_PTR(request)) {
            while (ucp_request_check_status(request) == UCS_INPROGRESS) {
                progress();
            }
            ucp_request_free(request);
        }
    }
    static ucs_status_t on_answer(void* argument, const void* header, std::size_t header_size, void*, std::size_t,
                                  const ucp_am_recv_param_t*) {
        transport::ServedAnswer answer;
        EXPECT_TRUE(transport::decode_answer({static_cast<const std::byte*>(header), header_size}, answer));
        ++static_cast<HostilePeer*>(argument)->answers[answer.status];
        return UCS_OK;
    }

    transport::UcxContext context_;
    transport::UcxWorker worker_;
    ucp_ep_h endpoint_ = nullptr;
};

class HostilePeerTest : public ::testing::Test {
protected:
    void SetUp() override { open(ucx_options(Network::kUcxTcp)); }
    void open(const transport::UcxOptions& options) {
        loop.run_and_wait([&] {
            auto opened = transport::open_ucx_transport(loop, options);
            ASSERT_TRUE(opened.ok()) << opened.status().message();
            transport = std::move(opened).value();
            transport->set_message_handler([this](auto header, auto payload) {
                messages.fetch_add(1);
                bytes.fetch_add(header.size() + payload.size());
            });
            auto registered = transport->register_memory(memory, MemoryKind::kHost, Access::kRemoteRead);
            ASSERT_TRUE(registered.ok());
            region = std::move(registered).value();
            address = transport->address();
        });
        peer = std::make_unique<HostilePeer>();
        peer->connect(address);
    }
    void TearDown() override {
        peer.reset();
        loop.run_and_wait([&] {
            region.reset();
            transport.reset();
        });
    }
    std::vector<std::byte> noise(std::size_t size) {
        std::vector<std::byte> out(size);
        std::ranges::generate(out, [&] { return static_cast<std::byte>(random()); });
        return out;
    }
    void request(std::uint64_t id, std::uint64_t at, std::uint64_t size) {
        std::array<std::uint64_t, 5> fields = {1, 0, id, at, size};
        peer->send(transport::kServedRequestId, std::as_bytes(std::span(fields)), {},
                   UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY);
    }

    EventLoop loop{"victim"};
    std::vector<std::byte> memory = pattern_bytes(1, 4096);
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::MemoryRegion> region;
    std::vector<std::byte> address;
    std::atomic<int> messages{0};
    std::atomic<std::size_t> bytes{0};
    std::unique_ptr<HostilePeer> peer;
    std::mt19937 random{21};
};

TEST_F(HostilePeerTest, RandomMessagesReachTheHandlerOrNobody) {
    std::size_t sent_bytes = 0;
    constexpr int kMessages = 1000;
    for (int i = 0; i < kMessages; ++i) {
        const auto header = noise(random() % 100);
        const auto payload = noise(random() % 3000);
        peer->send(0, header, payload, UCP_AM_SEND_FLAG_EAGER);
        sent_bytes += header.size() + payload.size();
        const unsigned reply = random() % 2 == 0 ? UCP_AM_SEND_FLAG_REPLY : 0;
        peer->send(transport::kServedRequestId, noise(random() % 100), noise(random() % 100),
                   UCP_AM_SEND_FLAG_EAGER | reply);
        peer->send(transport::kServedAnswerId, noise(random() % 3 == 0 ? 24 : random() % 100), noise(random() % 3000),
                   UCP_AM_SEND_FLAG_EAGER | reply);
        peer->send(static_cast<unsigned>(3 + random() % 100), header, payload, UCP_AM_SEND_FLAG_EAGER);
    }
    const auto start = std::chrono::steady_clock::now();
    while (messages.load() < kMessages && std::chrono::steady_clock::now() - start < kPatience) {
        peer->progress();
    }
    EXPECT_EQ(messages.load(), kMessages);
    EXPECT_EQ(bytes.load(), sent_bytes);
}

TEST_F(HostilePeerTest, OnlyRegisteredMemoryIsServed) {
    const auto fields = transport::decode_key([&] {
        std::vector<std::byte> key;
        loop.run_and_wait([&] { key = region->packed_key(); });
        static std::vector<std::byte> kept;
        kept = key;
        return std::span<const std::byte>(kept);
    }());
    ASSERT_TRUE(fields.ok());
    const std::uint64_t id = fields.value().id;
    const std::uint64_t begin = fields.value().address;
    request(id, begin, 4096);
    request(id, begin + 4095, 1);
    constexpr int kServed = 2;
    const std::array<std::array<std::uint64_t, 3>, 9> refused = {{{id, begin, 4097},
                                                                  {id, begin + 4096, 1},
                                                                  {id, begin - 1, 1},
                                                                  {id, begin + 1, 4096},
                                                                  {id, 0, 8},
                                                                  {id, ~std::uint64_t{0}, 2},
                                                                  {id, begin, ~std::uint64_t{0}},
                                                                  {id + 1000, begin, 8},
                                                                  {0, begin, 8}}};
    for (const auto& [region_id, at, size] : refused) {
        request(region_id, at, size);
    }
    const auto start = std::chrono::steady_clock::now();
    const int all = kServed + static_cast<int>(refused.size());
    while (peer->answers[UCS_OK] + peer->answers[UCS_ERR_INVALID_ADDR] < all &&
           std::chrono::steady_clock::now() - start < kPatience) {
        peer->progress();
    }
    EXPECT_EQ(peer->answers[UCS_OK], kServed);
    EXPECT_EQ(peer->answers[UCS_ERR_INVALID_ADDR], static_cast<int>(refused.size()));
}

class FewAnswersTest : public HostilePeerTest {
protected:
    static constexpr int kMaxAnswers = 4;
    void SetUp() override {
        memory = pattern_bytes(1, transport::kServedFragmentBytes);
        transport::UcxOptions options = ucx_options(Network::kUcxTcp);
        options.max_answers = kMaxAnswers;
        open(options);
    }
    // Asks for all of the memory, without taking what is answered, until the victim has seen that. Returns how often.
    int ask_for_more_than_sockets_hold() {
        std::vector<std::byte> packed;
        loop.run_and_wait([&] { packed = region->packed_key(); });
        const auto fields = transport::decode_key(packed);
        constexpr int kRequests = 1000;
        for (int i = 0; i < kRequests; ++i) {
            request(fields->id, fields->address, memory.size());
        }
        peer->send(0, {}, {}, UCP_AM_SEND_FLAG_EAGER);
        const auto start = std::chrono::steady_clock::now();
        while (messages.load() == 0 && std::chrono::steady_clock::now() - start < kPatience) {
            std::this_thread::yield();
        }
        return kRequests;
    }
};

TEST_F(FewAnswersTest, WhatCannotBeAnsweredIsRefused) {
    const int requests = ask_for_more_than_sockets_hold();
    const auto start = std::chrono::steady_clock::now();
    while (peer->answers[UCS_OK] + peer->answers[UCS_ERR_NO_RESOURCE] < requests &&
           std::chrono::steady_clock::now() - start < kPatience) {
        peer->progress();
    }
    EXPECT_EQ(peer->answers[UCS_OK] + peer->answers[UCS_ERR_NO_RESOURCE], requests);
    EXPECT_GT(peer->answers[UCS_OK], kMaxAnswers);
    EXPECT_GT(peer->answers[UCS_ERR_NO_RESOURCE], 0);
}

TEST_F(FewAnswersTest, AGetThatIsRefusedEndsAndNamesTheOwner) {
    ask_for_more_than_sockets_hold();
    EventLoop reader("reader");
    std::vector<std::byte> landing(memory.size());
    std::unique_ptr<transport::Transport> reading;
    std::unique_ptr<transport::MemoryRegion> target;
    std::unique_ptr<transport::Endpoint> endpoint;
    std::unique_ptr<transport::RemoteKey> key;
    CountedCompletion done;
    std::vector<std::byte> packed;
    loop.run_and_wait([&] { packed = region->packed_key(); });
    reader.run_and_wait([&] {
        reading = transport::open_ucx_transport(reader, ucx_options(Network::kUcxTcp)).value();
        target = reading->register_memory(landing, MemoryKind::kHost, Access::kLocal).value();
        endpoint = reading->connect(address, 7, [](const Status&) {}).value();
        key = endpoint->unpack_key(packed).value();
        endpoint->get(landing.data(), landing.size(), *target, reinterpret_cast<std::uint64_t>(memory.data()), *key,
                      done);
    });
    EXPECT_TRUE(done.wait_for());
    EXPECT_EQ(done.status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(done.status().peer(), 7);
    EXPECT_THAT(done.status().message(), testing::HasSubstr("reading from rank 7: it keeps too many answers"));
    CountedCompletion closed;
    reader.run_and_wait([&] {
        key.reset();
        endpoint->close(true, closed);
    });
    EXPECT_TRUE(closed.wait_for());
    reader.run_and_wait([&] {
        endpoint.reset();
        target.reset();
        reading.reset();
    });
}

}  // namespace
}  // namespace sluice::test

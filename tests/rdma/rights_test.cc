// What the hardware refuses: reads past a registered region, and writes to one that is registered for reading. The keys are
// forged or used by hand, since our own endpoints refuse such gets before they reach the network.
#include "tests/support/forked_peers.h"
#include "tests/transport/network.h"
#include "transport/ucx/ucx_context.h"
#include "transport/ucx/ucx_key_format.h"
#include "transport/ucx/ucx_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <sys/mman.h>
#include <thread>

namespace sluice::test {
namespace {

using transport::Access;

// A map of which only the first part is registered; the rest is as readable to the owner itself.
constexpr std::size_t kRegistered = std::size_t{1} << 20;
constexpr std::size_t kMapped = std::size_t{4} << 20;

// What the owner tells its readers.
struct Offer {
    Blob address;
    Blob key;
};

Blob pack(const Offer& offer) {
    Blob out(8);
    const std::uint64_t size = offer.address.size();
    std::memcpy(out.data(), &size, 8);
    out.insert(out.end(), offer.address.begin(), offer.address.end());
    out.insert(out.end(), offer.key.begin(), offer.key.end());
    return out;
}
Offer unpack(const Blob& blob) {
    std::uint64_t size = 0;
    std::memcpy(&size, blob.data(), 8);
    const auto middle = blob.begin() + 8 + static_cast<std::ptrdiff_t>(size);
    return {Blob(blob.begin() + 8, middle), Blob(middle, blob.end())};
}

std::span<std::byte> map_pattern() {
    void* at = ::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    const std::span<std::byte> memory(static_cast<std::byte*>(at), kMapped);
    for (std::size_t i = 0; i < memory.size(); ++i) {
        memory[i] = pattern(1, i);
    }
    return memory;
}

// Offers its memory until the test says that it is enough; its bytes are then as they were.
int own(PeerChannel& channel) {
    enter_node(0);
    EventLoop loop("owner");
    const std::span<std::byte> memory = map_pattern();
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::MemoryRegion> region;
    Offer offer;
    loop.run_and_wait([&] {
        auto opened = transport::open_ucx_transport(loop, ucx_options(Network::kUcxRc));
        ASSERT_TRUE(opened.ok()) << opened.status().message();
        transport = std::move(opened).value();
        auto made = transport->register_memory(memory.first(kRegistered), MemoryKind::kHost, Access::kRemoteRead);
        ASSERT_TRUE(made.ok()) << made.status().message();
        region = std::move(made).value();
        offer = {transport->address(), region->packed_key()};
    });
    channel.all_gather(pack(offer));
    channel.receive_from_test();
    for (std::size_t i = 0; i < memory.size(); ++i) {
        if (memory[i] != pattern(1, i)) {
            ADD_FAILURE() << "byte " << i << " was written by a reader";
            break;
        }
    }
    loop.run_and_wait([&] {
        region.reset();
        transport.reset();
    });
    return 0;
}

// A reader with one connection, on node 1.
struct Reader {
    explicit Reader(const Offer& owner) : loop("reader"), landing(kMapped) {
        loop.run_and_wait([&] {
            auto opened = transport::open_ucx_transport(loop, ucx_options(Network::kUcxRc));
            ASSERT_TRUE(opened.ok()) << opened.status().message();
            transport = std::move(opened).value();
            auto made = transport->register_memory(landing, MemoryKind::kHost, Access::kLocal);
            ASSERT_TRUE(made.ok()) << made.status().message();
            target = std::move(made).value();
        });
        connect(owner);
    }
    ~Reader() {
        disconnect();
        loop.run_and_wait([&] {
            target.reset();
            transport.reset();
        });
    }
    void connect(const Offer& owner) {
        loop.run_and_wait([&] {
            auto made = transport->connect(owner.address, 0, [this](const Status&) { ++lost; });
            ASSERT_TRUE(made.ok()) << made.status().message();
            endpoint = std::move(made).value();
            auto unpacked = endpoint->unpack_key(owner.key);
            ASSERT_TRUE(unpacked.ok()) << unpacked.status().message();
            key = std::move(unpacked).value();
        });
    }
    void disconnect() {
        CountedCompletion closed;
        loop.run_and_wait([&] {
            key.reset();
            endpoint->close(true, closed);
        });
        EXPECT_TRUE(closed.wait_for());
        loop.run_and_wait([&] { endpoint.reset(); });
    }
    Status read(std::uint64_t address, std::size_t size) {
        CountedCompletion done;
        loop.run_and_wait([&] { endpoint->get(landing.data(), size, *target, address, *key, done); });
        EXPECT_TRUE(done.wait_for());
        EXPECT_EQ(done.count(), 1);
        return done.status();
    }
    void read_all_of(const Offer& owner) {
        const auto fields = transport::decode_key(owner.key);
        ASSERT_TRUE(fields.ok());
        std::ranges::fill(landing, std::byte{0});
        const Status status = read(fields->address, kRegistered);
        ASSERT_TRUE(status.ok()) << status.message();
        for (std::size_t i = 0; i < kRegistered; ++i) {
            ASSERT_EQ(landing[i], pattern(1, i)) << i;
        }
    }

    EventLoop loop;
    std::vector<std::byte> landing;
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::MemoryRegion> target;
    std::unique_ptr<transport::Endpoint> endpoint;
    std::unique_ptr<transport::RemoteKey> key;
    std::atomic<int> lost{0};
};

// Runs an owner, somebody who violates its rights, and a bystander who must not notice.
void run_with_bystander(const std::function<void(const Offer&)>& violate) {
    ForkedPeers peers({own,
                       [&](PeerChannel& channel) {
                           enter_node(1);
                           const Offer owner = unpack(*channel.all_gather({})[0]);
                           channel.send_to_test({});
                           channel.receive_from_test();
                           violate(owner);
                           return 0;
                       },
                       [&](PeerChannel& channel) {
                           enter_node(1);
                           const Offer owner = unpack(*channel.all_gather({})[0]);
                           Reader reader(owner);
                           reader.read_all_of(owner);
                           channel.send_to_test({});
                           channel.receive_from_test();
                           reader.read_all_of(owner);
                           EXPECT_EQ(reader.lost.load(), 0);
                           return 0;
                       }},
                      kPeersLimit);
    peers.receive(1);
    peers.receive(2);
    peers.send(1, {});
    EXPECT_TRUE(peers.wait(1).ok()) << "the violator";
    peers.send(2, {});
    EXPECT_TRUE(peers.wait(2).ok()) << "the bystander";
    peers.send(0, {});
    EXPECT_TRUE(peers.wait_all_ok());
}

TEST(Rights, AReadPastTheRegionFailsAloneAndItsReaderMayConnectAgain) {
    run_with_bystander([](const Offer& owner) {
        const auto honest = transport::decode_key(owner.key);
        ASSERT_TRUE(honest.ok());
        transport::UcxKeyFields forged = *honest;
        forged.size = kMapped;
        Reader reader({owner.address, transport::encode_key(forged)});
        const Status refused = reader.read(honest->address + kMapped / 2, 1 << 16);
        EXPECT_FALSE(refused.ok()) << "read what was not registered";
        EXPECT_EQ(refused.peer(), 0) << refused.message();
        RecordProperty("refused", refused.message());
        reader.disconnect();
        reader.connect(owner);
        reader.read_all_of(owner);
    });
}

// UCX by hand, since our transport has no writes.
class Writer {
public:
    explicit Writer(const Offer& owner)
        : context_(transport::UcxContext::open(ucx_options(Network::kUcxRc).settings).value()),
          worker_(transport::UcxWorker::open(context_.handle()).value()) {
        const auto address = transport::decode_address(owner.address);
        const auto key = transport::decode_key(owner.key);
        ucp_ep_params_t params{};
        params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
        params.address = reinterpret_cast<const ucp_address_t*>(address->ucx.data());
        params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
        EXPECT_EQ(ucp_ep_create(worker_.handle(), &params, &endpoint_), UCS_OK);
        EXPECT_EQ(ucp_ep_rkey_unpack(endpoint_, key->ucx.data(), &key_), UCS_OK);
        at_ = key->address;
    }
    ~Writer() {
        ucp_rkey_destroy(key_);
        ucp_request_param_t params{};
        params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        params.flags = UCP_EP_CLOSE_FLAG_FORCE;
        finish(ucp_ep_close_nbx(endpoint_, &params));
    }
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;

    // Writes over the region, and waits until it has arrived there or not.
    ucs_status_t write(std::size_t size) {
        const std::vector<std::byte> bytes(size, std::byte{0x5A});
        ucp_request_param_t params{};
        const ucs_status_t written = finish(ucp_put_nbx(endpoint_, bytes.data(), size, at_, key_, &params));
        return written != UCS_OK ? written : finish(ucp_ep_flush_nbx(endpoint_, &params));
    }

private:
    ucs_status_t finish(ucs_status_ptr_t request) {
        if (!UCS_PTR_IS_PTR(request)) {
            return UCS_PTR_STATUS(request);
        }
        const auto start = std::chrono::steady_clock::now();
        ucs_status_t status = UCS_INPROGRESS;
        while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS &&
               std::chrono::steady_clock::now() - start < kPatience) {
            ucp_worker_progress(worker_.handle());
            std::this_thread::yield();
        }
        ucp_request_free(request);
        return status;
    }

    transport::UcxContext context_;
    transport::UcxWorker worker_;
    ucp_ep_h endpoint_ = nullptr;
    ucp_rkey_h key_ = nullptr;
    std::uint64_t at_ = 0;
};

TEST(Rights, AWriteToMemoryThatIsRegisteredForReadingFailsAndChangesNothing) {
    run_with_bystander([](const Offer& owner) {
        Writer writer(owner);
        const ucs_status_t status = writer.write(1 << 16);
        EXPECT_NE(status, UCS_OK) << "written to";
        EXPECT_NE(status, UCS_INPROGRESS) << "neither refused nor done";
    });
}

}  // namespace
}  // namespace sluice::test

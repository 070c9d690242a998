#include "cli/doctor/probe_peers.h"

#include "runtime/cuda/cuda_device.h"
#include "runtime/services/event_loop.h"
#include "runtime/services/shared_memory.h"
#include "transport/ucx/ucx_transport.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <sys/socket.h>
#include <sys/uio.h>
#include <system_error>
#include <unistd.h>

namespace sluice::cli {
namespace {

using transport::Access;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::size_t kInFlight = 8;
constexpr std::size_t kMemory = kPiece * kInFlight;
constexpr std::byte kContent{0xA5};
// Connections are made within this time, or something is wrong.
constexpr std::chrono::seconds kConnectLimit{10};
// A read that needs nobody else takes microseconds.
constexpr std::chrono::seconds kHeldLimit{1};
constexpr std::chrono::milliseconds kRateSpan{300};
constexpr std::uint32_t kMostBlob = 1 << 20;
constexpr std::int64_t kSharedBytes = 1;

Status socket_error(const char* what) {
    return {StatusCode::kPeerLost, fmt::format("the other process of the probe is gone ({})", what)};
}

bool write_all(int socket, const void* data, std::size_t size) {
    return ::send(socket, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}
bool read_all(int socket, void* data, std::size_t size) {
    return ::recv(socket, data, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}
Status send_blob(int socket, std::span<const std::byte> blob) {
    const auto size = static_cast<std::uint32_t>(blob.size());
    return write_all(socket, &size, sizeof(size)) && write_all(socket, blob.data(), blob.size())
               ? ok_status()
               : socket_error("sending");
}
Result<std::vector<std::byte>> receive_blob(int socket) {
    std::uint32_t size = 0;
    if (!read_all(socket, &size, sizeof(size)) || size > kMostBlob) {
        return socket_error("receiving");
    }
    std::vector<std::byte> blob(size);
    if (!read_all(socket, blob.data(), size)) {
        return socket_error("receiving");
    }
    return blob;
}

/// Counts ends.
class Ends final : public transport::Completion {
public:
    void complete(const Status& status) override {
        const std::lock_guard lock(mutex_);
        ++count_;
        if (first_failure_.ok()) {
            first_failure_ = status;
        }
        changed_.notify_all();
    }
    /// False when the time is up first.
    bool wait_for(std::size_t count, Clock::duration patience) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, patience, [&] { return count_ >= count; });
    }
    [[nodiscard]] Status status() const {
        const std::lock_guard lock(mutex_);
        return first_failure_;
    }

private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t count_ = 0;
    Status first_failure_;
};

/// A transport and registered memory, of the owner or the reader.
struct Side {
    explicit Side(const LinkProbeOptions& options) : loop("probe") { status = set_up(options); }
    ~Side() {
        loop.run_and_wait([&] {
            key.reset();
            endpoint.reset();
            region.reset();
            transport.reset();
        });
    }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    EventLoop loop;
    std::unique_ptr<Device> device;
    std::optional<Buffer> memory;
    std::optional<Buffer> tried;
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::MemoryRegion> region;
    // The reader's.
    std::unique_ptr<transport::Endpoint> endpoint;
    std::unique_ptr<transport::RemoteKey> key;
    Status status;

private:
    Status set_up(const LinkProbeOptions& options) {
        transport::UcxOptions ucx;
        ucx.settings = options.settings.ucx;
        ucx.show_log = options.settings.show_ucx_log;
        if (options.network_only) {
            ucx.settings.push_back({"TLS", network_transports(options.settings.ucx_transports)});
        }
        if (options.memory == MemoryKind::kCuda) {
            SLUICE_ASSIGN_OR_RETURN(device, open_cuda_device(0, 1));
            SLUICE_ASSIGN_OR_RETURN(memory, device->allocate(kMemory));
            SLUICE_ASSIGN_OR_RETURN(tried, device->allocate(4096));
            SLUICE_RETURN_IF_ERROR(device->fill(memory->data(), kContent, kMemory, 0));
            ucx.probe_memory = tried->bytes();
            ucx.probe_kind = MemoryKind::kCuda;
        } else {
            SLUICE_ASSIGN_OR_RETURN(memory, Buffer::allocate(kMemory, MemoryKind::kHost));
            std::memset(memory->data(), static_cast<int>(kContent), kMemory);
        }
        Status opened;
        loop.run_and_wait([&] { opened = open(ucx); });
        return opened;
    }
    Status open(const transport::UcxOptions& ucx) {
        if (device != nullptr) {
            SLUICE_RETURN_IF_ERROR(device->use_on_this_thread());
        }
        SLUICE_ASSIGN_OR_RETURN(transport, transport::open_ucx_transport(loop, ucx));
        SLUICE_ASSIGN_OR_RETURN(region,
                                transport->register_memory(memory->bytes(), memory->kind(), Access::kRemoteRead));
        return ok_status();
    }
};

/// The pieces are read one after the other for a while, some at a time.
class Stream {
public:
    Stream(Side& side, std::uint64_t place, Clock::time_point end) : side_(side), place_(place), end_(end) {}

    Result<double> run(const LinkProbe& probe) {
        const auto start = Clock::now();
        side_.loop.run_and_wait([&] {
            for (std::size_t i = 0; i < kInFlight; ++i) {
                Piece& piece = pieces_.emplace_back();
                piece.stream = this;
                piece.index = i;
                piece.start();
            }
        });
        if (!ends_.wait_for(kInFlight, kRateSpan + kConnectLimit)) {
            return Status{StatusCode::kDeadlineExceeded,
                          fmt::format("reads over {} hang while the owner is busy with nothing else", probe.transport)};
        }
        SLUICE_RETURN_IF_ERROR(ends_.status());
        return static_cast<double>(bytes_) / std::chrono::duration<double>(Clock::now() - start).count();
    }

private:
    struct Piece final : transport::Completion {
        void start() {
            const std::size_t at = index * kPiece;
            stream->side_.endpoint->get(stream->side_.memory->data() + at, kPiece, *stream->side_.region,
                                        stream->place_ + at, *stream->side_.key, *this);
        }
        void complete(const Status& status) override {
            if (status.ok()) {
                stream->bytes_ += kPiece;
                if (Clock::now() < stream->end_) {
                    start();
                    return;
                }
            }
            stream->ends_.complete(status);
        }
        Stream* stream = nullptr;
        std::size_t index = 0;
    };

    Side& side_;
    std::uint64_t place_;
    Clock::time_point end_;
    std::deque<Piece> pieces_;
    std::size_t bytes_ = 0;  // On the loop; read when all have ended.
    Ends ends_;
};

// One byte to the owner: hold still. It says when it does, and goes on at the next byte.
Status hold_owner(int socket) {
    char byte = 'h';
    return write_all(socket, &byte, 1) && read_all(socket, &byte, 1) ? ok_status() : socket_error("holding");
}
void let_owner_go(int socket) { static_cast<void>(write_all(socket, "g", 1)); }

/// What the owner says of itself.
struct Offer {
    struct Place {
        pid_t process = 0;
        std::uint64_t bytes = 0;   ///< Of the memory to read.
        std::uint64_t canary = 0;  ///< Of a byte in host memory.
        SharedMemoryHandle shared;
    } place;
    std::vector<std::byte> address;
    std::vector<std::byte> key;
    std::vector<std::byte> no_shared;  ///< Why the owner has no shared memory, as text; empty when it has.
};

/// Whether the kernel reads the memory of another process for this one: that is CMA.
std::string cma_refusal(const Offer& offer) {
    std::byte byte{};
    const iovec here{&byte, 1};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address in the other process.
    const iovec there{reinterpret_cast<void*>(offer.place.canary), 1};
    if (::process_vm_readv(offer.place.process, &here, 1, &there, 1, 0) != 1) {
        return fmt::format("process_vm_readv: {}", std::generic_category().message(errno));
    }
    return {};
}

/// Whether mapped copies work. They need other rights than CMA does.
std::string mapping_refusal(const Offer& offer) {
    if (!offer.no_shared.empty()) {
        return {reinterpret_cast<const char*>(offer.no_shared.data()), offer.no_shared.size()};
    }
    return map_shared_memory(offer.place.shared, kSharedBytes).status().message();
}

Result<Offer> receive_offer(int socket) {
    Offer offer;
    SLUICE_ASSIGN_OR_RETURN(offer.address, receive_blob(socket));
    SLUICE_ASSIGN_OR_RETURN(offer.key, receive_blob(socket));
    SLUICE_ASSIGN_OR_RETURN(offer.no_shared, receive_blob(socket));
    if (!read_all(socket, &offer.place, sizeof(offer.place))) {
        return socket_error("receiving");
    }
    return offer;
}

Status connect(Side& side, const Offer& offer) {
    SLUICE_ASSIGN_OR_RETURN(side.endpoint, side.transport->connect(offer.address, 0, [](const Status&) {}));
    SLUICE_ASSIGN_OR_RETURN(side.key, side.endpoint->unpack_key(offer.key));
    return ok_status();
}

/// What must outlive the reads, of which one that hangs ends no sooner than its process.
struct Reads {
    Ends first;
    Ends held;
    std::optional<Stream> stream;
};

Status try_out(Side& side, const Offer& offer, int socket, Reads& reads, LinkProbe& probe) {
    Status status;
    side.loop.run_and_wait([&] {
        status = connect(side, offer);
        if (status.ok()) {
            side.endpoint->get(side.memory->data(), 1, *side.region, offer.place.bytes, *side.key, reads.first);
        }
    });
    SLUICE_RETURN_IF_ERROR(status);
    const bool connected = reads.first.wait_for(1, kConnectLimit);
    transport::LinkInfo link;
    side.loop.run_and_wait([&] { link = side.endpoint->link(); });
    probe.transport = link.transport;
    probe.said_one_sided = link.link_class == transport::LinkClass::kOneSided;
    if (!connected) {
        return {StatusCode::kDeadlineExceeded,
                fmt::format("no read over {} has ended after {} s", link.transport, kConnectLimit.count())};
    }
    SLUICE_RETURN_IF_ERROR(reads.first.status());

    SLUICE_RETURN_IF_ERROR(hold_owner(socket));
    side.loop.run_and_wait([&] {
        side.endpoint->get(side.memory->data(), kPiece, *side.region, offer.place.bytes, *side.key, reads.held);
    });
    probe.found_one_sided = reads.held.wait_for(1, kHeldLimit) && reads.held.status().ok();
    let_owner_go(socket);
    if (!reads.held.wait_for(1, kConnectLimit)) {
        return {StatusCode::kDeadlineExceeded, fmt::format("a read over {} hangs", link.transport)};
    }
    SLUICE_RETURN_IF_ERROR(reads.held.status());
    reads.stream.emplace(side, offer.place.bytes, Clock::now() + kRateSpan);
    SLUICE_ASSIGN_OR_RETURN(probe.bytes_per_second, reads.stream->run(probe));
    return ok_status();
}

}  // namespace

Status run_probe_owner(const LinkProbeOptions& options, int socket) {
    Side side(options);
    SLUICE_RETURN_IF_ERROR(side.status);
    std::vector<std::byte> address;
    side.loop.run_and_wait([&] { address = side.transport->address(); });
    SLUICE_RETURN_IF_ERROR(send_blob(socket, address));
    SLUICE_RETURN_IF_ERROR(send_blob(socket, side.region->packed_key()));
    const Result<SharedBuffer> shared = SharedBuffer::allocate(kSharedBytes);
    const std::string no_shared = shared.status().message();
    SLUICE_RETURN_IF_ERROR(send_blob(socket, std::as_bytes(std::span(no_shared))));
    const std::byte canary{};
    const Offer::Place place{::getpid(), reinterpret_cast<std::uint64_t>(side.memory->data()),
                             reinterpret_cast<std::uint64_t>(&canary),
                             shared.ok() ? shared->handle() : SharedMemoryHandle{}};
    if (!write_all(socket, &place, sizeof(place))) {
        return socket_error("sending");
    }
    for (char byte = 0; read_all(socket, &byte, 1);) {
        side.loop.run_and_wait([&] {
            static_cast<void>(write_all(socket, &byte, 1));
            static_cast<void>(read_all(socket, &byte, 1));
        });
    }
    return ok_status();
}

void run_probe_reader(const LinkProbeOptions& options, int socket, const std::function<void(const LinkProbe&)>& tell) {
    LinkProbe probe;
    const Result<Offer> offer = receive_offer(socket);
    if (!offer.ok()) {
        return;  // The owner has failed, and knows why.
    }
    probe.cma_refused = cma_refusal(*offer);
    probe.mapping_refused = mapping_refusal(*offer);
    Side side(options);
    Reads reads;
    const Status status = side.status.ok() ? try_out(side, *offer, socket, reads, probe) : side.status;
    probe.problem = status.message();
    tell(probe);
}

}  // namespace sluice::cli

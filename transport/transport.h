#pragma once

#include "runtime/base/memory_kind.h"
#include "runtime/base/status.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// The interface between the exchange and a network: one-sided gets, small messages, registered memory. There are two
/// implementations with the same behaviour: UCX (transport/ucx) and an in-process fake (transport/fake).
///
/// Threads: everything is called, and every callback runs, on the event loop that the transport was opened with.
/// Callbacks may call back into the transport; they never run inside the call that started the operation.
/// Lifetimes: remote keys, endpoints and regions die before their transport. A key is used with its endpoint only, and may outlive it: those of
/// a peer that was lost do, until whoever holds them gives them back.
namespace sluice::transport {

/// The end of an operation: told exactly once, with success or an error, also when the endpoint is closed or the peer dies.
/// Owned by the caller, who keeps it and all memory of the operation alive until then.
class Completion {
public:
    Completion() = default;
    Completion(const Completion&) = delete;
    Completion& operator=(const Completion&) = delete;
    virtual ~Completion() = default;
    virtual void complete(const Status& status) = 0;
};

/// What may be done with a registered region from outside.
enum class Access : std::uint8_t {
    kLocal,       ///< Destination of our own gets.
    kRemoteRead,  ///< Also readable by peers that have the packed key.
};

/// Registered memory. Registering once per arena is the rule; any part of it may then be used.
class MemoryRegion {
public:
    virtual ~MemoryRegion() = default;
    [[nodiscard]] virtual std::byte* data() const = 0;
    [[nodiscard]] virtual std::size_t size() const = 0;
    [[nodiscard]] virtual MemoryKind kind() const = 0;
    /// Opaque bytes with which a peer makes a RemoteKey. Empty for kLocal.
    [[nodiscard]] virtual std::vector<std::byte> packed_key() const = 0;
};

/// The right to read a peer's region over one endpoint.
class RemoteKey {
public:
    virtual ~RemoteKey() = default;
};

/// Whether a get needs the owner's CPU. An emulated get is served by the owner's progress loop.
enum class LinkClass : std::uint8_t { kOneSided, kEmulated };

struct LinkInfo {
    std::string transport;  ///< As UCX names it: "cma/memory", "tcp/eth0", "rc_mlx5/mlx5_0:1"; "fake".
    LinkClass link_class = LinkClass::kEmulated;
    /// The memory that it was tried out with. Gets of other memory may go by another transport.
    MemoryKind probed = MemoryKind::kHost;
    /// A get should be cut into pieces of at most this many bytes, since a copy may run inside progress (1 MiB for
    /// CMA and emulated links; larger for RDMA and cuda_ipc).
    std::size_t max_get_bytes = 1 << 20;
};

/// A connection to one peer.
class Endpoint {
public:
    virtual ~Endpoint() = default;

    /// Reads [remote_address, + size) of the peer into `local`, which lies within `region`. size > 0.
    virtual void get(std::byte* local, std::size_t size, const MemoryRegion& region, std::uint64_t remote_address,
                     const RemoteKey& key, Completion& completion) = 0;

    /// Sends one message (header and payload together at most max_message_bytes() of the transport). Both are read
    /// until the completion, which is local: it does not say that the peer has seen it. Messages on an endpoint arrive in order.
    virtual void send(std::span<const std::byte> header, std::span<const std::byte> payload,
                      Completion& completion) = 0;

    /// Refuses malformed bytes and keys of regions that cannot be read over this link.
    virtual Result<std::unique_ptr<RemoteKey>> unpack_key(std::span<const std::byte> packed) = 0;

    /// Known once connected (first message or get done); before that the class is a guess.
    [[nodiscard]] virtual LinkInfo link() const = 0;

    /// Starts to close. `force` fails what is in flight (the only way to end a get early); without it the operations
    /// in flight end first. Completes when nothing of the endpoint is in flight any more; destroy it after that.
    virtual void close(bool force, Completion& completion) = 0;
};

/// Receives messages of all endpoints, on the loop. The bytes are valid during the call only, and come from outside:
/// nothing about them is checked.
using MessageHandler = std::function<void(std::span<const std::byte> header, std::span<const std::byte> payload)>;
/// Told at most once per endpoint when the transport finds that its peer is lost; not after close(). The endpoint is still to be closed (force).
using PeerLostHandler = std::function<void(const Status& cause)>;

class Transport {
public:
    virtual ~Transport() = default;

    /// Opaque bytes with which a peer connects to this transport.
    [[nodiscard]] virtual std::vector<std::byte> address() const = 0;
    [[nodiscard]] virtual std::size_t max_message_bytes() const = 0;

    /// Set before the first connect.
    virtual void set_message_handler(MessageHandler handler) = 0;

    /// Registers caller's memory, which must outlive the region. Refuses memory whose kind is not `kind`, and a
    /// registration over a system limit, naming limit and remedy. size 0 is legal and registers nothing.
    virtual Result<std::unique_ptr<MemoryRegion>> register_memory(std::span<std::byte> memory, MemoryKind kind,
                                                                  Access access) = 0;

    /// Returns at once; the connection is made by progress on both sides. `peer` is the world rank, for messages.
    virtual Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> address, int peer,
                                                      PeerLostHandler on_lost) = 0;
};

}  // namespace sluice::transport

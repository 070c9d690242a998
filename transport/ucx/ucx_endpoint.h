#pragma once

#include "transport/transport.h"
#include "transport/ucx/served_gets.h"
#include "transport/ucx/ucx_operation.h"
#include "transport/ucx/ucx_remote_key.h"

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace sluice::transport {

class UcxTransport;

/// A UCP endpoint with what is in flight on it.
class UcxEndpoint final : public Endpoint {
public:
    UcxEndpoint(UcxTransport& transport, int peer, PeerLostHandler on_lost);
    /// Closes by force, and waits for that, when close() has not come to its end.
    ~UcxEndpoint() override;

    /// Once, right after construction. The probe that finds out the link is started too.
    Status open(const UcxAddressFields& address);
    /// After a failed open(): closes by force, without anybody who waits for it.
    void abandon();
    /// Nothing is left of it but itself.
    [[nodiscard]] bool closed() const { return step_ == Step::kClosed; }

    void get(std::byte* local, std::size_t size, const MemoryRegion& region, std::uint64_t remote_address,
             const RemoteKey& key, Completion& completion) override;
    void send(std::span<const std::byte> header, std::span<const std::byte> payload, Completion& completion) override;
    Result<std::unique_ptr<RemoteKey>> unpack_key(std::span<const std::byte> packed) override;
    [[nodiscard]] LinkInfo link() const override;
    void close(bool force, Completion& completion) override;

    [[nodiscard]] std::uint64_t id() const { return id_; }
    /// An operation for a message of ServedGets; operation_ended() gives it back.
    UcxOperation& take_request();
    /// Within UCX's progress.
    void answered(const ServedAnswer& answer, std::span<const std::byte> bytes);

    // What follows is called by the transport, outside of UCX's progress.

    /// One of our operations has ended; it goes back to the pool. May destroy the endpoint.
    void operation_ended(UcxOperation& operation);
    /// UCX has reported the peer as lost. May destroy the endpoint.
    void tell_lost();
    /// Takes closing a step further, if it can go. May destroy the endpoint.
    void advance_close();

private:
    enum class Step : std::uint8_t { kOpen, kDraining, kFlushing, kClosing, kClosed };

    static void on_error(void* argument, ucp_ep_h endpoint, ucs_status_t status);

    // Why nothing can be started here any more, or ok.
    [[nodiscard]] Status loss(const std::string& what) const;
    [[nodiscard]] Status refusal() const;
    [[nodiscard]] Status status_of(const UcxOperation& operation) const;
    void refuse(UcxOperation& operation, Status why);
    void start_closing(bool force);
    void start_probe();
    void probe_ended(ucs_status_t status);
    void settle_link(const LinkInfo& link);
    void close_handle(bool force);

    UcxTransport& transport_;
    const std::uint64_t id_;
    const int peer_;
    PeerLostHandler on_lost_;
    ucp_ep_h handle_ = nullptr;
    std::optional<ucs_status_t> lost_;
    std::unique_ptr<UcxRemoteKey> probe_key_;
    MemoryKind probed_with_ = MemoryKind::kHost;  // Of both sides; host memory when they differ.
    std::optional<LinkInfo> probed_;              // What UCX said about the probe when it was started.
    std::optional<LinkInfo> link_;                // Known once the probe has ended.
    ServedGets served_;
    int in_flight_ = 0;         // Everything but flush and close.
    int closing_requests_ = 0;  // Flush and close.
    bool force_ = false;
    Step step_ = Step::kOpen;
    std::vector<Completion*> closers_;
};

}  // namespace sluice::transport

#pragma once

#include "transport/transport.h"
#include "transport/ucx/ucx_key_format.h"

#include <ucp/api/ucp.h>

#include <memory>

namespace sluice::transport {

/// A UCP remote key, unpacked for one endpoint. Destroyed after the gets that use it and before the worker.
class UcxRemoteKey final : public RemoteKey {
public:
    /// `endpoint` is UCX's; `peer` is for the message.
    static Result<std::unique_ptr<UcxRemoteKey>> open(ucp_ep_h endpoint, const UcxKeyFields& fields, int peer);

    /// True when [address, + size) lies within the peer's region.
    [[nodiscard]] bool covers(std::uint64_t address, std::size_t size) const {
        return address >= address_ && size <= size_ && address - address_ <= size_ - size;
    }
    [[nodiscard]] std::uint64_t id() const { return id_; }
    [[nodiscard]] std::uint64_t address() const { return address_; }
    [[nodiscard]] std::uint64_t size() const { return size_; }
    [[nodiscard]] ucp_rkey_h handle() const { return handle_.get(); }

private:
    struct Destroy {
        void operator()(ucp_rkey_h handle) const { ucp_rkey_destroy(handle); }
    };
    explicit UcxRemoteKey(const UcxKeyFields& fields) : id_(fields.id), address_(fields.address), size_(fields.size) {}

    std::uint64_t id_;
    std::uint64_t address_;
    std::uint64_t size_;
    std::unique_ptr<ucp_rkey, Destroy> handle_;
};

}  // namespace sluice::transport

#pragma once

#include "transport/transport.h"
#include "transport/ucx/ucx_context.h"

#include <ucp/api/ucp.h>

#include <memory>

namespace sluice::transport {

/// A UCP memory handle. Dies before its context.
class UcxMemoryRegion final : public MemoryRegion {
public:
    static Result<std::unique_ptr<MemoryRegion>> open(const UcxContext& context, std::span<std::byte> memory,
                                                      MemoryKind kind, Access access);

    [[nodiscard]] std::byte* data() const override { return memory_.data(); }
    [[nodiscard]] std::size_t size() const override { return memory_.size(); }
    [[nodiscard]] MemoryKind kind() const override { return kind_; }
    [[nodiscard]] std::vector<std::byte> packed_key() const override { return packed_key_; }

    /// Null when the region is empty.
    [[nodiscard]] ucp_mem_h handle() const { return handle_.get(); }

private:
    struct Unmap {
        void operator()(ucp_mem_h handle) const { ucp_mem_unmap(context, handle); }
        ucp_context_h context;
    };
    UcxMemoryRegion(ucp_context_h context, std::span<std::byte> memory, MemoryKind kind)
        : memory_(memory), kind_(kind), handle_(nullptr, Unmap{context}) {}
    Status pack(ucp_context_h context);

    std::span<std::byte> memory_;
    MemoryKind kind_;
    std::unique_ptr<ucp_mem, Unmap> handle_;
    std::vector<std::byte> packed_key_;
};

/// UCX's word for a memory kind.
ucs_memory_type_t to_ucs(MemoryKind kind);

}  // namespace sluice::transport

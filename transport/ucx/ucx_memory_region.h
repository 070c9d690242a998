#pragma once

#include "transport/transport.h"
#include "transport/ucx/ucx_context.h"

#include <ucp/api/ucp.h>

#include <cstdint>
#include <map>
#include <memory>

namespace sluice::transport {

class UcxMemoryRegion;

/// The regions that peers may read, by the number in their keys.
class ReadableRegions {
public:
    std::uint64_t add(UcxMemoryRegion& region) {
        regions_[++last_] = &region;
        return last_;
    }
    void remove(std::uint64_t id) { regions_.erase(id); }
    /// Null when there is none.
    [[nodiscard]] UcxMemoryRegion* find(std::uint64_t id) const {
        const auto found = regions_.find(id);
        return found == regions_.end() ? nullptr : found->second;
    }

private:
    std::uint64_t last_ = 0;
    std::map<std::uint64_t, UcxMemoryRegion*> regions_;
};

/// A UCP memory handle. Dies before its context.
class UcxMemoryRegion final : public MemoryRegion {
public:
    /// With Access::kRemoteRead it is in `readable`, which outlives it, while it lives.
    static Result<std::unique_ptr<MemoryRegion>> open(const UcxContext& context, ReadableRegions& readable,
                                                      std::span<std::byte> memory, MemoryKind kind, Access access);
    ~UcxMemoryRegion() override;

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
    UcxMemoryRegion(ucp_context_h context, ReadableRegions& readable, std::span<std::byte> memory, MemoryKind kind)
        : readable_(readable), memory_(memory), kind_(kind), handle_(nullptr, Unmap{context}) {}
    Status pack(ucp_context_h context);

    ReadableRegions& readable_;
    std::uint64_t id_ = 0;
    std::span<std::byte> memory_;
    MemoryKind kind_;
    std::unique_ptr<ucp_mem, Unmap> handle_;
    std::vector<std::byte> packed_key_;
};

/// UCX's word for a memory kind.
ucs_memory_type_t to_ucs(MemoryKind kind);

}  // namespace sluice::transport

#pragma once

#include "runtime/base/memory_kind.h"
#include "runtime/base/status.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::transport {

/// What a packed key says about a region. UCX's part is opaque, and empty for an empty region.
struct UcxKeyFields {
    std::uint64_t id = 0;  ///< By which the owner knows the region.
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    MemoryKind kind = MemoryKind::kHost;
    std::span<const std::byte> ucx;
};

std::vector<std::byte> encode_key(const UcxKeyFields& fields);
/// Refuses bytes that are no key. `ucx` of the result lies within `packed`.
Result<UcxKeyFields> decode_key(std::span<const std::byte> packed);

/// The address of a transport: UCX's, and a key to a few bytes that a peer reads to see how a get travels.
struct UcxAddressFields {
    std::span<const std::byte> ucx;
    std::span<const std::byte> probe_key;
};

std::vector<std::byte> encode_address(const UcxAddressFields& fields);
Result<UcxAddressFields> decode_address(std::span<const std::byte> packed);

}  // namespace sluice::transport

#pragma once

#include "runtime/services/shared_memory.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace sluice {

/// A registered region of an owner as a puller knows it: where it starts in the owner's address space, its size, and the
/// packed key that opens it.
struct RemoteRegion {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::vector<std::byte> key;
    /// How a process of the same host can map it, when it can.
    std::optional<SharedMemoryHandle> shared = {};
    /// The same for device memory (Device::map); empty when it cannot.
    std::vector<std::byte> shared_device = {};
};

/// All of an owner's memory that one flow reads. Told once, at set-up.
struct RemoteMemory {
    std::vector<RemoteRegion> segments;        ///< By SegmentId.
    std::vector<RemoteRegion> gather_buffers;  ///< By buffer number of a publish; empty when nothing is gathered.
    RemoteRegion slots;                        ///< Serve slots, one after the other.
    std::uint64_t slot_bytes = 0;
};

}  // namespace sluice

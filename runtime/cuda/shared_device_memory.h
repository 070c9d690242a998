#pragma once

#include "runtime/base/status.h"
#include "runtime/services/buffer.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// Device memory that another process of this host maps, by CUDA IPC.
namespace sluice {

/// Opaque bytes with which another process maps the memory at `data`. CUDA shares whole allocations, so they say how far into its
/// allocation `data` lies. Refused with its name: memory of a kind that CUDA IPC cannot export (stream-ordered pools, VMM).
Result<std::vector<std::byte>> share_device_memory(const std::byte* data);

/// The memory behind `handle` in the current device's address space, `size` bytes. Two maps of one allocation are two buffers.
Result<Buffer> map_device_memory(std::span<const std::byte> handle, std::int64_t size);

}  // namespace sluice

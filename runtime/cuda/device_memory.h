#pragma once

#include "runtime/base/status.h"
#include "runtime/cuda/stream.h"
#include "runtime/services/buffer.h"

#include <cstddef>
#include <cstdint>

/// Memory of the current CUDA device, and copies from and to it. Allocating and freeing may wait for the whole device: for
/// set-up and tear-down only.
namespace sluice {

/// From cudaMalloc (so that it can be exported to other processes); not cleared. `size` >= 0; 0 has no address.
Result<Buffer> allocate_device_memory(std::int64_t size);
/// Page-locked host memory that the device can read and write too, cleared.
Result<Buffer> allocate_pinned_memory(std::int64_t size);

/// Starts a copy between any two kinds of memory on `stream`; host memory that is not pinned makes it wait.
Status copy_async(std::byte* to, const std::byte* from, std::size_t size, const CudaStream& stream);
Status fill_async(std::byte* to, std::byte value, std::size_t size, const CudaStream& stream);

}  // namespace sluice

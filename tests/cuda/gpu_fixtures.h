#pragma once

#include "runtime/base/status.h"
#include "runtime/services/buffer.h"

#include <cstdint>
#include <string>

struct CUstream_st;

/// GPU memory and work as embedding programs have them, for tests. On the current device.
namespace sluice::test {

/// From a stream-ordered pool (cudaMallocAsync).
Result<Buffer> allocate_from_pool(std::int64_t size);
/// Physical memory (cuMemCreate, exportable as a file descriptor), in `pieces` that are mapped side by side.
Result<Buffer> allocate_virtual(std::int64_t size, int pieces);

/// By the cudaMalloc and cudaFree of libcudart as a shared library, beside the one that is linked in.
Result<Buffer> allocate_with_shared_runtime(std::int64_t size);
/// Empty where there is such a library. Starts no CUDA.
std::string why_no_shared_runtime();

/// Keeps `stream` busy for about `seconds`, with one thread of one multiprocessor.
Status launch_busy(double seconds, CUstream_st* stream);

}  // namespace sluice::test

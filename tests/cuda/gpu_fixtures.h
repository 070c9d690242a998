#pragma once

#include "runtime/base/status.h"
#include "runtime/services/buffer.h"

#include <cstdint>

struct CUstream_st;

/// GPU memory and work as embedding programs have them, for tests. On the current device.
namespace sluice::test {

/// From a stream-ordered pool (cudaMallocAsync).
Result<Buffer> allocate_from_pool(std::int64_t size);
/// Physical memory (cuMemCreate, exportable as a file descriptor), in `pieces` that are mapped side by side.
Result<Buffer> allocate_virtual(std::int64_t size, int pieces);

/// Keeps `stream` busy for about `seconds`, with one thread of one multiprocessor.
Status launch_busy(double seconds, CUstream_st* stream);

}  // namespace sluice::test

#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::test {

/// Calls of the CUDA driver by everything in the process: the linked runtime, and UCX. Kept by the library cuda_call_counter, which is preloaded.
struct CudaCalls {
    /// The caller waits: for a stream, an event, the device, or in a copy that blocks.
    std::atomic<std::int64_t> waits{0};
    /// Those of them that wait for everything on the device.
    std::atomic<std::int64_t> device_waits{0};
    /// Memory of the device, or pinned, is allocated or freed.
    std::atomic<std::int64_t> allocations{0};
};

/// Exported by the library, found by dlsym.
inline constexpr const char* kCudaCallsSymbol = "sluice_cuda_calls";
using CudaCallsFunction = CudaCalls*();

}  // namespace sluice::test

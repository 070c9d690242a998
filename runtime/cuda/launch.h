#pragma once

#include "runtime/cuda/cuda_status.h"

#include <cuda_runtime.h>

#include <utility>

namespace sluice {

/// Launches a kernel; the status is that of the launch. (cudaGetLastError() after <<<>>> may give, and take away, an error of the embedding
/// program's that was on the thread before.)
template <class... Parameters, class... Arguments>
Status launch(const char* what, void (*kernel)(Parameters...), unsigned blocks, unsigned threads, cudaStream_t stream,
              Arguments&&... arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = stream;
    return from_cuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), what);
}

}  // namespace sluice

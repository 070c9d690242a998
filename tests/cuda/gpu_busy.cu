#include "tests/cuda/gpu_fixtures.h"

#include <cuda_runtime.h>

namespace sluice::test {
namespace {

__global__ void busy(std::uint64_t nanoseconds) {
    std::uint64_t begin = 0;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    std::uint64_t now = begin;
    while (now - begin < nanoseconds) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        __nanosleep(1000);
    }
}

}  // namespace

Status launch_busy(double seconds, CUstream_st* stream) {
    busy<<<1, 1, 0, stream>>>(static_cast<std::uint64_t>(seconds * 1e9));
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? ok_status() : internal_error(cudaGetErrorString(error));
}

}  // namespace sluice::test

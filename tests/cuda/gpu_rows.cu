#include "tests/cuda/gpu_rows.h"

#include <cuda_fp8.h>
#include <cuda_runtime.h>

namespace sluice::test {
namespace {

__device__ float widen(std::byte value) {
    __nv_fp8_e4m3 f8;
    f8.__x = static_cast<__nv_fp8_storage_t>(value);
    return static_cast<float>(f8);
}

__global__ void sum_rows(BlockQuantisation weight, std::int64_t block_rows, std::int64_t block_columns, float* sums) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= weight.matrices * weight.rows) {
        return;
    }
    const std::int64_t block_row = row / weight.rows * block_rows + row % weight.rows / kQuantiseBlock;
    float sum = 0;
    for (std::int64_t column = 0; column < weight.columns; ++column) {
        const float scale = weight.scales[block_row * block_columns + column / kQuantiseBlock];
        sum = __fadd_rn(sum, __fmul_rn(widen(weight.values[row * weight.columns + column]), scale));
    }
    sums[row] = sum;
}

}  // namespace

Status launch_row_sums(const BlockQuantisation& weight, float* sums, CUstream_st* stream) {
    constexpr std::int64_t kThreads = 128;
    const auto blocks = static_cast<unsigned>((weight.matrices * weight.rows + kThreads - 1) / kThreads);
    sum_rows<<<blocks, static_cast<unsigned>(kThreads), 0, stream>>>(weight, weight.block_rows(),
                                                                     weight.block_columns(), sums);
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? ok_status() : internal_error(cudaGetErrorString(error));
}

}  // namespace sluice::test

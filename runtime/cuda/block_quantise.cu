#include "runtime/cuda/block_quantise.h"

#include "runtime/base/float_bits.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/cuda/launch.h"

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <limits>

namespace sluice {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = static_cast<int>(kQuantiseBlock);

template <DType kFrom>
struct Source {
    using Bits = std::uint16_t;
    static __device__ float widen(std::uint32_t bits) {
        return kFrom == DType::kBF16 ? f32_from_bf16(static_cast<std::uint16_t>(bits))
                                     : f32_from_f16(static_cast<std::uint16_t>(bits));
    }
};
template <>
struct Source<DType::kF32> {
    using Bits = std::uint32_t;
    static __device__ float widen(std::uint32_t bits) { return __uint_as_float(bits); }
};

struct Shape {
    std::int64_t rows, columns, block_rows, block_columns;
    bool vectors;  // rows of source and values may be read and written by whole vectors
};

/// x / scale for many x: the same bits as the division, by a reciprocal that is refined with what is left over, twice, as the division
/// itself does it. Holds for every x whose quotient is not far below the smallest f8; smaller ones become 0 either way.
class Divisor {
public:
    __device__ explicit Divisor(float scale) : scale_(scale) { reciprocal_ = __frcp_rn(scale); }
    __device__ float operator()(float x) const {
        float q = x * reciprocal_;
        q = __fmaf_rn(__fmaf_rn(-scale_, q, x), reciprocal_, q);
        q = __fmaf_rn(__fmaf_rn(-scale_, q, x), reciprocal_, q);
        return copysignf(q, x);  // what is left over of a negative zero is a positive one
    }

private:
    float scale_, reciprocal_;
};

__device__ std::uint32_t two_values(float a, float b) {
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}

__device__ float scale_of(float amax) { return __fdiv_rn(amax < 1e-4F ? 1e-4F : amax, 448.0F); }

// The largest of what all threads of the block have.
__device__ std::uint32_t largest_in_block(std::uint32_t mine) {
    __shared__ std::uint32_t of_warp[kThreads / 32];
    mine = __reduce_max_sync(0xFFFFFFFFu, mine);
    if (threadIdx.x % 32 == 0) {
        of_warp[threadIdx.x / 32] = mine;
    }
    __syncthreads();
    for (const std::uint32_t other : of_warp) {
        mine = mine > other ? mine : other;
    }
    return mine;
}

/// A vector of 16 bytes of elements.
template <DType kFrom>
struct Vector {
    static constexpr bool kHalf = sizeof(typename Source<kFrom>::Bits) == 2;
    static constexpr int kElements = kHalf ? 8 : 4;
    std::uint32_t word[4];

    [[nodiscard]] __device__ float value(int i) const {
        if constexpr (kFrom == DType::kBF16) {
            return __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xFFFF0000u);
        } else if constexpr (kHalf) {
            return Source<kFrom>::widen(i % 2 == 0 ? word[i / 2] & 0xFFFFu : word[i / 2] >> 16);
        } else {
            return __uint_as_float(word[i]);
        }
    }
    // Magnitudes compare as their bits do, in the narrow form too; a NaN is above all others. Two at a time where there are two.
    __device__ void take_largest(std::uint32_t& largest) const {
        for (const std::uint32_t w : word) {
            if constexpr (kHalf) {
                largest = __vmaxu2(largest, w & 0x7FFF7FFFu);
            } else {
                largest = max(largest, w & 0x7FFFFFFFu);
            }
        }
    }
};

template <DType kFrom, class Divide>
__device__ void store_values(const Vector<kFrom>& vector, std::byte* at, const Divide& divide) {
    using V = Vector<kFrom>;
    std::uint32_t packed[V::kElements / 4];
#pragma unroll
    for (int i = 0; i < V::kElements / 4; ++i) {
        packed[i] = two_values(divide(vector.value(4 * i)), divide(vector.value(4 * i + 1))) |
                    two_values(divide(vector.value(4 * i + 2)), divide(vector.value(4 * i + 3))) << 16;
    }
    if constexpr (V::kHalf) {
        *reinterpret_cast<uint2*>(at) = make_uint2(packed[0], packed[1]);
    } else {
        *reinterpret_cast<std::uint32_t*>(at) = packed[0];
    }
}

// A whole block of 128 x 128 elements, held in registers between the two passes.
template <DType kFrom>
__device__ void quantise_whole(const std::byte* source, std::byte* values, float* scale_out, std::int64_t columns) {
    using V = Vector<kFrom>;
    constexpr int kThreadsPerRow = kBlock / V::kElements;
    constexpr int kRowsPerTurn = kThreads / kThreadsPerRow;
    constexpr int kTurns = kBlock / kRowsPerTurn;
    constexpr auto kItem = static_cast<std::int64_t>(sizeof(typename Source<kFrom>::Bits));
    const std::int64_t mine = static_cast<int>(threadIdx.x) / kThreadsPerRow * columns +
                              static_cast<int>(threadIdx.x) % kThreadsPerRow * V::kElements;
    const std::int64_t turn_step = kRowsPerTurn * columns;

    V data[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const uint4 read = __ldcs(reinterpret_cast<const uint4*>(source + (mine + turn * turn_step) * kItem));
        data[turn] = {{read.x, read.y, read.z, read.w}};
    }
    std::uint32_t largest = 0;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        data[turn].take_largest(largest);
    }
    if constexpr (V::kHalf) {
        largest = max(largest & 0xFFFFu, largest >> 16);
    }
    const float scale = scale_of(Source<kFrom>::widen(largest_in_block(largest)));
    if (threadIdx.x == 0) {
        *scale_out = scale;
    }
    // Infinite and NaN scales need the division's own special cases.
    if (scale < __int_as_float(0x7F800000)) {
        const Divisor divide(scale);
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
            store_values(data[turn], values + mine + turn * turn_step, divide);
        }
    } else {
#pragma unroll 1
        for (int turn = 0; turn < kTurns; ++turn) {
            const uint4 read = *reinterpret_cast<const uint4*>(source + (mine + turn * turn_step) * kItem);
            store_values(V{{read.x, read.y, read.z, read.w}}, values + mine + turn * turn_step,
                         [scale](float x) { return __fdiv_rn(x, scale); });
        }
    }
}

// A block at an edge, or in memory that is not aligned: element by element, read twice.
template <DType kFrom>
__device__ void quantise_part(const std::byte* source, std::byte* values, float* scale_out, std::int64_t columns,
                              int rows, int width) {
    using Bits = typename Source<kFrom>::Bits;
    const auto bits = [&](int i) -> std::uint32_t {
        return reinterpret_cast<const Bits*>(source)[i / width * columns + i % width];
    };
    std::uint32_t largest = 0;
    for (int i = static_cast<int>(threadIdx.x); i < rows * width; i += kThreads) {
        largest = max(largest, bits(i) & (sizeof(Bits) == 2 ? 0x7FFFu : 0x7FFFFFFFu));
    }
    const float scale = scale_of(Source<kFrom>::widen(largest_in_block(largest)));
    if (threadIdx.x == 0) {
        *scale_out = scale;
    }
    for (int i = static_cast<int>(threadIdx.x); i < rows * width; i += kThreads) {
        const float q = __fdiv_rn(Source<kFrom>::widen(bits(i)), scale);
        values[i / width * columns + i % width] = static_cast<std::byte>(two_values(q, 0) & 0xFFu);
    }
}

template <DType kFrom>
__global__ void __launch_bounds__(kThreads, sizeof(typename Source<kFrom>::Bits) == 2 ? 4 : 2)
    quantise(const std::byte* __restrict__ source, std::byte* __restrict__ values, float* __restrict__ scales,
             const __grid_constant__ Shape shape) {
    const std::int64_t number = blockIdx.x;
    const std::int64_t per_matrix = shape.block_rows * shape.block_columns;
    const std::int64_t matrix = number / per_matrix;
    const std::int64_t row = number % per_matrix / shape.block_columns * kBlock;
    const std::int64_t column = number % shape.block_columns * kBlock;
    const std::int64_t begin = (matrix * shape.rows + row) * shape.columns + column;
    const std::int64_t rows = min(shape.rows - row, static_cast<std::int64_t>(kBlock));
    const std::int64_t width = min(shape.columns - column, static_cast<std::int64_t>(kBlock));
    source += begin * static_cast<std::int64_t>(sizeof(typename Source<kFrom>::Bits));
    if (shape.vectors && rows == kBlock && width == kBlock) {
        quantise_whole<kFrom>(source, values + begin, scales + number, shape.columns);
    } else {
        quantise_part<kFrom>(source, values + begin, scales + number, shape.columns, static_cast<int>(rows),
                             static_cast<int>(width));
    }
}

}  // namespace

Status load_quantise_kernels() {
    cudaFuncAttributes ignored{};
    for (const void* kernel :
         {reinterpret_cast<const void*>(&quantise<DType::kBF16>), reinterpret_cast<const void*>(&quantise<DType::kF16>),
          reinterpret_cast<const void*>(&quantise<DType::kF32>)}) {
        SLUICE_RETURN_IF_ERROR(from_cuda(cudaFuncGetAttributes(&ignored, kernel), "loading a quantisation kernel"));
    }
    return ok_status();
}

Status launch_quantise(const BlockQuantisation& job, CUstream_st* stream) {
    SLUICE_RETURN_IF_ERROR(check_quantisation(job));
    const Shape shape{job.rows, job.columns, job.block_rows(), job.block_columns(),
                      job.columns % 16 == 0 && reinterpret_cast<std::uintptr_t>(job.source) % 16 == 0 &&
                          reinterpret_cast<std::uintptr_t>(job.values) % 16 == 0};
    const std::int64_t blocks = job.matrices * shape.block_rows * shape.block_columns;
    if (blocks == 0) {
        return ok_status();
    }
    if (blocks > std::numeric_limits<int>::max()) {
        return invalid_argument("a quantisation of more than 2^31 blocks; do it matrix by matrix");
    }
    const auto grid = static_cast<unsigned>(blocks);
    const auto kernel = job.from == DType::kBF16  ? quantise<DType::kBF16>
                        : job.from == DType::kF16 ? quantise<DType::kF16>
                                                  : quantise<DType::kF32>;
    return launch("launching block quantisation", kernel, grid, kThreads, stream, job.source, job.values, job.scales,
                  shape);
}

}  // namespace sluice

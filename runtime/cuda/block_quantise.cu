#include "runtime/cuda/block_quantise.h"

#include "runtime/base/float_bits.h"
#include "runtime/cuda/cuda_status.h"

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

// 16 bytes of source elements, as 32-bit words.
struct Vector {
    std::uint32_t word[4];
};

template <class Bits>
__device__ std::uint32_t element(const Vector& v, int i) {
    return sizeof(Bits) == 4 ? v.word[i] : (v.word[i / 2] >> (i % 2 * 16)) & 0xFFFFu;
}

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

// One block of 128 x 128 elements, held in registers between the two passes.
template <DType kFrom>
__global__ void __launch_bounds__(kThreads) quantise(const std::byte* __restrict__ source,
                                                     std::byte* __restrict__ values, float* __restrict__ scales,
                                                     Shape shape) {
    using From = Source<kFrom>;
    using Bits = typename From::Bits;
    constexpr int kPerVector = 16 / sizeof(Bits);
    constexpr int kThreadsPerRow = kBlock / kPerVector;
    constexpr int kRowsPerTurn = kThreads / kThreadsPerRow;
    constexpr int kTurns = kBlock / kRowsPerTurn;

    const std::int64_t number = blockIdx.x;
    const std::int64_t per_matrix = shape.block_rows * shape.block_columns;
    const std::int64_t matrix = number / per_matrix;
    const std::int64_t block_row = number % per_matrix / shape.block_columns;
    const std::int64_t block_column = number % shape.block_columns;
    const std::int64_t row_begin = block_row * kBlock + threadIdx.x / kThreadsPerRow;
    const std::int64_t column = block_column * kBlock + threadIdx.x % kThreadsPerRow * kPerVector;
    const std::int64_t begin = matrix * shape.rows * shape.columns + column;
    const bool whole = shape.vectors && (block_row + 1) * kBlock <= shape.rows &&
                       (block_column + 1) * kBlock <= shape.columns;

    Vector data[kTurns];
    std::uint32_t largest = 0;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const std::int64_t row = row_begin + turn * kRowsPerTurn;
        const std::byte* at = source + (begin + row * shape.columns) * static_cast<std::int64_t>(sizeof(Bits));
        if (whole) {
            const uint4 read = __ldcs(reinterpret_cast<const uint4*>(at));
            data[turn] = {{read.x, read.y, read.z, read.w}};
        } else {
            data[turn] = {};
            for (int i = 0; i < kPerVector; ++i) {
                if (row < shape.rows && column + i < shape.columns) {
                    const std::uint32_t bits = reinterpret_cast<const Bits*>(at)[i];
                    data[turn].word[i * static_cast<int>(sizeof(Bits)) / 4] |= bits << (sizeof(Bits) == 2 ? i % 2 * 16 : 0);
                }
            }
        }
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
        for (int i = 0; i < kPerVector; ++i) {
            // Magnitudes compare as their bits do, in the narrow form too; a NaN is above all others.
            const std::uint32_t magnitude =
                element<Bits>(data[turn], i) & (sizeof(Bits) == 2 ? 0x7FFFu : 0x7FFFFFFFu);
            largest = largest > magnitude ? largest : magnitude;
        }
    }
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
    __shared__ std::uint32_t of_warp[kThreads / 32];
    if (threadIdx.x % 32 == 0) {
        of_warp[threadIdx.x / 32] = largest;
    }
    __syncthreads();
    largest = 0;
    for (const std::uint32_t other : of_warp) {
        largest = largest > other ? largest : other;
    }
    const float amax = From::widen(largest);
    const float scale = __fdiv_rn(amax < 1e-4F ? 1e-4F : amax, 448.0F);
    if (threadIdx.x == 0) {
        scales[number] = scale;
    }

    // Infinite and NaN scales need the division's own special cases.
    const bool finite = scale < __int_as_float(0x7F800000);
    const Divisor divide(scale);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const std::int64_t row = row_begin + turn * kRowsPerTurn;
        std::byte* at = values + begin + row * shape.columns;
        float q[kPerVector];
#pragma unroll
        for (int i = 0; i < kPerVector; ++i) {
            const float x = From::widen(element<Bits>(data[turn], i));
            q[i] = finite ? divide(x) : __fdiv_rn(x, scale);
        }
        if (whole) {
            std::uint32_t packed[kPerVector / 4];
#pragma unroll
            for (int i = 0; i < kPerVector / 4; ++i) {
                packed[i] = two_values(q[4 * i], q[4 * i + 1]) | two_values(q[4 * i + 2], q[4 * i + 3]) << 16;
            }
            if (kPerVector == 8) {
                *reinterpret_cast<uint2*>(at) = make_uint2(packed[0], packed[kPerVector / 4 - 1]);
            } else {
                *reinterpret_cast<std::uint32_t*>(at) = packed[0];
            }
        } else {
            for (int i = 0; i < kPerVector; ++i) {
                if (row < shape.rows && column + i < shape.columns) {
                    at[i] = static_cast<std::byte>(two_values(q[i], 0) & 0xFFu);
                }
            }
        }
    }
}

}  // namespace

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
    switch (job.from) {
        case DType::kBF16:
            quantise<DType::kBF16><<<grid, kThreads, 0, stream>>>(job.source, job.values, job.scales, shape);
            break;
        case DType::kF16:
            quantise<DType::kF16><<<grid, kThreads, 0, stream>>>(job.source, job.values, job.scales, shape);
            break;
        default:
            quantise<DType::kF32><<<grid, kThreads, 0, stream>>>(job.source, job.values, job.scales, shape);
    }
    return from_cuda(cudaGetLastError(), "launching block quantisation");
}

}  // namespace sluice

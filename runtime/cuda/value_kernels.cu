#include "runtime/cuda/value_kernels.h"

#include "runtime/cuda/copy_program.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/cuda/launch.h"
#include "runtime/services/tensor_element.h"

#include <cuda_runtime.h>

namespace sluice {
namespace {

constexpr int kThreads = 256;
constexpr int kVectors = static_cast<int>(CopyProgram::kTileBytes) / (kThreads * 16);

// 16 bytes of a tensor, from byte `at` on, which begins an element.
template <class Element>
__device__ uint4 sixteen_bytes(std::uint64_t name_hash, std::int64_t at, std::uint64_t step) {
    using Bits = typename Element::Bits;
    constexpr int kPerWord = 8 / sizeof(Bits);
    const std::uint64_t position = name_hash + static_cast<std::uint64_t>(at) / sizeof(Bits);
    std::uint64_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2 * kPerWord; ++i) {
        words[i / kPerWord] |= static_cast<std::uint64_t>(element::value<Element>(position + i, step))
                               << (i % kPerWord * 8 * static_cast<int>(sizeof(Bits)) % 64);
    }
    return make_uint4(static_cast<unsigned>(words[0]), static_cast<unsigned>(words[0] >> 32),
                      static_cast<unsigned>(words[1]), static_cast<unsigned>(words[1] >> 32));
}

__device__ unsigned char one_byte(const ValueTensor& tensor, std::int64_t at, std::uint64_t step) {
    unsigned char out = 0;
    element::with_element(tensor.dtype, [&]<class Element>(Element) {
        constexpr int kSize = sizeof(typename Element::Bits);
        const auto bits = static_cast<std::uint64_t>(
            element::value<Element>(tensor.name_hash + static_cast<std::uint64_t>(at / kSize), step));
        out = static_cast<unsigned char>(bits >> (at % kSize * 8));
    });
    return out;
}

template <bool kCheck>
__global__ void __launch_bounds__(kThreads)
    values(const __grid_constant__ DeviceProgramView program, const ValueTensor* tensors, std::uint64_t step,
           unsigned long long* different) {
    const std::uint32_t low = program.tiles[blockIdx.x];
    const std::uint32_t high = program.tiles[blockIdx.x + 1];
    unsigned found = 0;
    for (int k = 0; k < kVectors; ++k) {
        const std::int64_t begin = blockIdx.x * CopyProgram::kTileBytes + (k * kThreads + threadIdx.x) * 16;
        if (begin >= program.wire_bytes) {
            break;
        }
        const std::uint32_t index = program.find(low, high, begin);
        const CopyDescriptor& d = program.descriptors[index];
        if (d.unit == 16) {
            const CopyDescriptor::Place place = d.place(static_cast<std::uint32_t>(begin - d.wire_begin));
            const ValueTensor tensor = tensors[d.tag];
            uint4 expected{};
            element::with_element(tensor.dtype, [&]<class Element>(Element) {
                expected = sixteen_bytes<Element>(tensor.name_hash, place.source, step);
            });
            auto* target = reinterpret_cast<uint4*>(place.target);
            if (kCheck) {
                const uint4 is = *target;
                found += is.x != expected.x || is.y != expected.y || is.z != expected.z || is.w != expected.w;
            } else {
                *target = expected;
            }
            continue;
        }
        const std::int64_t end = begin + 16 < program.wire_bytes ? begin + 16 : program.wire_bytes;
        bool differs = false;
        for (std::int64_t at = begin; at < end; ++at) {
            const std::uint32_t here = program.find(low, high, at);
            const CopyDescriptor& own = program.descriptors[here];
            const CopyDescriptor::Place place = own.place(static_cast<std::uint32_t>(at - own.wire_begin));
            const unsigned char expected = one_byte(tensors[own.tag], place.source, step);
            auto* target = reinterpret_cast<unsigned char*>(place.target);
            if (kCheck) {
                differs = differs || *target != expected;
            } else {
                *target = expected;
            }
        }
        found += differs;
    }
    if (kCheck && found > 0) {
        atomicAdd(different, found);
    }
}

}  // namespace

Status launch_fill_values(const DeviceProgramView& program, const ValueTensor* tensors, std::int64_t version,
                          CUstream_st* stream) {
    if (program.tile_count == 0) {
        return ok_status();
    }
    return launch("launching the generation of values", values<false>, program.tile_count, kThreads, stream, program,
                  tensors, element::version_step(version), nullptr);
}

Status launch_check_values(const DeviceProgramView& program, const ValueTensor* tensors, std::int64_t version,
                           std::uint64_t* different, CUstream_st* stream) {
    if (program.tile_count == 0) {
        return ok_status();
    }
    return launch("launching the check of values", values<true>, program.tile_count, kThreads, stream, program, tensors,
                  element::version_step(version), reinterpret_cast<unsigned long long*>(different));
}

}  // namespace sluice

#include "runtime/cuda/copy_kernels.h"

#include "runtime/base/float_bits.h"
#include "runtime/base/mix64.h"
#include "runtime/cuda/copy_program.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/cuda/segment_secrets.h"

#include <cuda_runtime.h>

namespace sluice {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// What a warp moves in one turn: two segments of a checksum, four vectors of each lane.
constexpr int kVectors = 4;
constexpr std::int64_t kWarpBytes = CopyProgram::kTileBytes / kWarps;
static_assert(kWarpBytes == 32 * 16 * kVectors && kWarpBytes == 2 * 1024);
// Tiles of one block: enough to spread the cost of its start, few enough to leave blocks for every multiprocessor.
constexpr std::uint32_t kMostTilesPerBlock = 4;
constexpr std::uint32_t kEnoughBlocks = 4096;

struct Bases {
    char* of[kCopyBases];
};

enum class Job { kCopy, kHashSource, kHashTarget };

// The descriptor that holds byte `at` of the wire form, one of [low, high].
__device__ const CopyDescriptor* find(const DeviceProgramView& program, std::uint32_t low, std::uint32_t high,
                                      std::int64_t at) {
    while (low < high) {
        const std::uint32_t middle = (low + high + 1) / 2;
        if (program.descriptors[middle].wire_begin <= at) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return program.descriptors + low;
}

__device__ char* source_of(const CopyDescriptor& d, const Bases& bases, std::int64_t at) {
    return bases.of[static_cast<int>(d.source_base)] + at;
}
__device__ char* target_of(const CopyDescriptor& d, const Bases& bases, std::int64_t at) {
    return bases.of[static_cast<int>(d.target_base)] + at;
}

template <class Unit, Job kJob>
__device__ void move_units(const char* source, char* target, int bytes, int first, std::uint64_t words[2]) {
    for (int i = 0; i < bytes; i += static_cast<int>(sizeof(Unit))) {
        const Unit value = *reinterpret_cast<const Unit*>((kJob == Job::kHashTarget ? target : source) + i);
        if (kJob == Job::kCopy) {
            *reinterpret_cast<Unit*>(target + i) = value;
        }
        const int at = first + i;
        words[at / 8] |= static_cast<std::uint64_t>(value) << (at % 8 * 8);
    }
}

// Up to 16 bytes of the wire form that do not lie together, or not aligned.
template <Job kJob>
__device__ __noinline__ uint4 move_pieces(const DeviceProgramView& program, std::uint32_t low, std::uint32_t high,
                                          const Bases& bases, std::int64_t begin) {
    std::uint64_t words[2] = {0, 0};
    const std::int64_t end = begin + 16 < program.wire_bytes ? begin + 16 : program.wire_bytes;
    for (std::int64_t at = begin; at < end;) {
        const CopyDescriptor& d = *find(program, low, high, at);
        const CopyDescriptor::Place place = d.place(static_cast<std::uint32_t>(at - d.wire_begin));
        const std::int64_t rest = d.run.divisor - place.in_run;
        const int bytes = static_cast<int>(end - at < rest ? end - at : rest);
        const int first = static_cast<int>(at - begin);
        const char* source = source_of(d, bases, place.source);
        char* target = target_of(d, bases, place.target);
        switch (d.unit) {
            case 16:
            case 8:
                move_units<std::uint64_t, kJob>(source, target, bytes, first, words);
                break;
            case 4:
                move_units<std::uint32_t, kJob>(source, target, bytes, first, words);
                break;
            case 2:
                move_units<std::uint16_t, kJob>(source, target, bytes, first, words);
                break;
            default:
                move_units<std::uint8_t, kJob>(source, target, bytes, first, words);
        }
        at += bytes;
    }
    return make_uint4(static_cast<unsigned>(words[0]), static_cast<unsigned>(words[0] >> 32),
                      static_cast<unsigned>(words[1]), static_cast<unsigned>(words[1] >> 32));
}

// What XXH3 adds to a pair of accumulators for 16 bytes.
__device__ void accumulate(const uint4& data, std::uint64_t secret0, std::uint64_t secret1, std::uint64_t& acc0,
                           std::uint64_t& acc1) {
    const std::uint64_t word0 = data.x | static_cast<std::uint64_t>(data.y) << 32;
    const std::uint64_t word1 = data.z | static_cast<std::uint64_t>(data.w) << 32;
    const std::uint64_t key0 = word0 ^ secret0;
    const std::uint64_t key1 = word1 ^ secret1;
    acc0 += (key0 & 0xFFFFFFFFu) * (key0 >> 32) + word1;
    acc1 += (key1 & 0xFFFFFFFFu) * (key1 >> 32) + word0;
}

constexpr std::uint64_t kPrime32_1 = 0x9E3779B1u;
constexpr std::uint64_t kPrime32_2 = 0x85EBCA77u;
constexpr std::uint64_t kPrime32_3 = 0xC2B2AE3Du;
constexpr std::uint64_t kPrime64_1 = 0x9E3779B185EBCA87u;
constexpr std::uint64_t kPrime64_2 = 0xC2B2AE3D27D4EB4Fu;
constexpr std::uint64_t kPrime64_3 = 0x165667B19E3779F9u;
constexpr std::uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63u;
constexpr std::uint64_t kPrime64_5 = 0x27D4EB2F165667C5u;

__device__ std::uint64_t shuffle(std::uint64_t value, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, value, mask); }

/// Hashes the two segments of a warp, of which lane l has pieces l and l + 32: XXH3-64 of 1 KiB, whose accumulators are sums.
class SegmentHasher {
public:
    __device__ SegmentHasher(const std::uint64_t* secrets, int lane) : lane_(lane) {
        for (int half = 0; half < 2; ++half) {
            secret_[2 * half] = secrets[2 * (lane + 32 * half)];
            secret_[2 * half + 1] = secrets[2 * (lane + 32 * half) + 1];
        }
        const int pair = lane % 4;
        merge_[0] = secrets[2 * kSegmentPieces + 2 * pair];
        merge_[1] = secrets[2 * kSegmentPieces + 2 * pair + 1];
        // What the accumulators start with.
        start_[0] = pair == 0 ? kPrime32_3 : pair == 1 ? kPrime64_2 : pair == 2 ? kPrime64_4 : kPrime64_5;
        start_[1] = pair == 0 ? kPrime64_1 : pair == 1 ? kPrime64_3 : pair == 2 ? kPrime32_2 : kPrime32_1;
    }

    /// Adds both segments, the first of which has number `index`, to the lane's part of the sum.
    __device__ void add(const uint4 (&data)[kVectors], std::uint64_t index, std::uint64_t segments) {
        std::uint64_t a0 = 0, a1 = 0, b0 = 0, b1 = 0;
        accumulate(data[0], secret_[0], secret_[1], a0, a1);
        accumulate(data[1], secret_[2], secret_[3], a0, a1);
        accumulate(data[2], secret_[0], secret_[1], b0, b1);
        accumulate(data[3], secret_[2], secret_[3], b0, b1);
        // The lower half of the warp goes on with the first segment, the upper half with the second.
        const bool upper = lane_ >= 16;
        std::uint64_t acc0 = (upper ? b0 : a0) + shuffle(upper ? a0 : b0, 16);
        std::uint64_t acc1 = (upper ? b1 : a1) + shuffle(upper ? a1 : b1, 16);
        for (int mask = 8; mask >= 4; mask /= 2) {
            acc0 += shuffle(acc0, mask);
            acc1 += shuffle(acc1, mask);
        }
        const std::uint64_t x = (acc0 + start_[0]) ^ merge_[0];
        const std::uint64_t y = (acc1 + start_[1]) ^ merge_[1];
        std::uint64_t merged = (x * y) ^ __umul64hi(x, y);
        merged += shuffle(merged, 2);
        merged += shuffle(merged, 1);
        merged += 1024 * kPrime64_1;
        merged ^= merged >> 37;
        merged *= 0x165667919E3779F9u;
        merged ^= merged >> 32;
        const std::uint64_t mine = index + (upper ? 1 : 0);
        if (lane_ % 16 == 0 && mine < segments) {
            sum_ += mix64(merged + mine * kGoldenStep);
        }
    }

    [[nodiscard]] __device__ std::uint64_t sum() const { return sum_; }

private:
    int lane_;
    std::uint64_t secret_[4];
    std::uint64_t merge_[2];
    std::uint64_t start_[2];
    std::uint64_t sum_ = 0;
};

// Adds up what all threads of all blocks have; the last block writes the digest and leaves the sink as it was.
__device__ void finish_hash(const HashSink& sink, std::uint64_t mine, std::int64_t wire_bytes) {
    __shared__ unsigned long long block_sum;
    if (threadIdx.x == 0) {
        block_sum = 0;
    }
    __syncthreads();
    if (threadIdx.x % 16 == 0) {
        atomicAdd(&block_sum, static_cast<unsigned long long>(mine));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        auto* sum = reinterpret_cast<unsigned long long*>(sink.sum);
        atomicAdd(sum, block_sum);
        __threadfence();
        if (atomicInc(sink.blocks_done, gridDim.x - 1) == gridDim.x - 1) {
            *sink.digest = atomicExch(sum, 0) + static_cast<std::uint64_t>(wire_bytes);
        }
    }
}

template <Job kJob, bool kHash>
__global__ void __launch_bounds__(kThreads) move(const __grid_constant__ DeviceProgramView program,
                                                 const __grid_constant__ Bases bases,
                                                 const __grid_constant__ HashSink sink,
                                                 std::uint32_t tiles_per_block) {
    // The descriptor that most of a tile, or all of it, lies in.
    __shared__ CopyDescriptor first;
    constexpr std::uint32_t kNone = ~0u;
    std::uint32_t held = kNone;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    SegmentHasher hasher(kHash ? sink.secrets : nullptr, lane);

    const std::uint32_t begin = blockIdx.x * tiles_per_block;
    const std::uint32_t end = min(begin + tiles_per_block, program.tile_count);
    for (std::uint32_t tile = begin; tile < end; ++tile) {
        const std::uint32_t low = program.tiles[tile];
        const std::uint32_t high = program.tiles[tile + 1];
        if (low != held) {
            __syncthreads();
            constexpr int kParts = sizeof(CopyDescriptor) / 16;
            if (static_cast<int>(threadIdx.x) < kParts) {
                reinterpret_cast<uint4*>(&first)[threadIdx.x] =
                    reinterpret_cast<const uint4*>(program.descriptors + low)[threadIdx.x];
            }
            __syncthreads();
            held = low;
        }
        const std::int64_t warp_begin = tile * CopyProgram::kTileBytes + warp * kWarpBytes;
        uint4 data[kVectors];
        char* target[kVectors];
#pragma unroll
        for (int k = 0; k < kVectors; ++k) {
            data[k] = make_uint4(0, 0, 0, 0);
            target[k] = nullptr;
            const std::int64_t at = warp_begin + k * 512 + lane * 16;
            if (at >= program.wire_bytes) {
                continue;
            }
            const CopyDescriptor* d = at < first.wire_end() ? &first : find(program, low, high, at);
            if (d->unit == 16) {
                const CopyDescriptor::Place place = d->place(static_cast<std::uint32_t>(at - d->wire_begin));
                if (kJob != Job::kHashTarget) {
                    data[k] = *reinterpret_cast<const uint4*>(source_of(*d, bases, place.source));
                    target[k] = target_of(*d, bases, place.target);
                } else {
                    data[k] = *reinterpret_cast<const uint4*>(target_of(*d, bases, place.target));
                }
            } else {
                data[k] = move_pieces<kJob>(program, low, high, bases, at);
            }
        }
        if (kJob == Job::kCopy) {
#pragma unroll
            for (int k = 0; k < kVectors; ++k) {
                if (target[k] != nullptr) {
                    *reinterpret_cast<uint4*>(target[k]) = data[k];
                }
            }
        }
        if (kHash) {
            hasher.add(data, static_cast<std::uint64_t>(warp_begin) / 1024,
                       (static_cast<std::uint64_t>(program.wire_bytes) + 1023) / 1024);
        }
    }
    if (kHash) {
        finish_hash(sink, hasher.sum(), program.wire_bytes);
    }
}

template <class T>
__device__ T load_bytes(const char* from) {
    T out;
    memcpy(&out, from, sizeof(T));
    return out;
}

// An element of any of the four types, which all others can be widened to exactly.
__device__ double load_element(DType type, const char* bytes) {
    std::uint64_t bits = 0;
    const int size = type == DType::kF64 ? 8 : type == DType::kF32 ? 4 : 2;
    for (int i = 0; i < size; ++i) {
        bits |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    }
    switch (type) {
        case DType::kF64:
            return __longlong_as_double(static_cast<long long>(bits));
        case DType::kF32:
            return __uint_as_float(static_cast<unsigned>(bits));
        case DType::kF16:
            return f32_from_f16(static_cast<std::uint16_t>(bits));
        default:
            return f32_from_bf16(static_cast<std::uint16_t>(bits));
    }
}

__device__ std::uint64_t narrowed(DType from, DType to, double value) {
    // From 32 bits or fewer one rounding does; only an f64 has to be kept from being rounded twice.
    const bool wide = from == DType::kF64;
    switch (to) {
        case DType::kF64:
            return static_cast<std::uint64_t>(__double_as_longlong(value));
        case DType::kF32:
            return __float_as_uint(static_cast<float>(value));
        case DType::kF16:
            return wide ? f16_from_f64(value) : f16_from_f32(static_cast<float>(value));
        default:
            return wide ? bf16_from_f64(value) : bf16_from_f32(static_cast<float>(value));
    }
}

// All elements that begin within 8 bytes of the wire form, one by one, wherever they lie.
__device__ __noinline__ void convert_pieces(const DeviceProgramView& program, std::uint32_t low, std::uint32_t high,
                                            const Bases& bases, std::int64_t begin) {
    const std::int64_t end = begin + 8 < program.wire_bytes ? begin + 8 : program.wire_bytes;
    for (std::int64_t at = begin; at < end;) {
        const CopyDescriptor& d = *find(program, low, high, at);
        const auto offset = static_cast<std::uint32_t>(at - d.wire_begin);
        if (offset % d.wire_item != 0) {
            at += d.wire_item - offset % d.wire_item;  // the rest of one that began before
            continue;
        }
        const CopyDescriptor::Place place = d.place(offset);
        const char* source = source_of(d, bases, place.source);
        char* target = target_of(d, bases, place.target);
        if (d.conversion == Conversion::kNone) {
            *target = *source;
        } else {
            const std::uint64_t bits = narrowed(d.from, d.to, load_element(d.from, source));
            for (int i = 0; i < d.target_item; ++i) {
                target[i] = static_cast<char>(bits >> (8 * i));
            }
        }
        at += d.wire_item;
    }
}

template <class Narrow>
__device__ uint2 narrow4(const uint4& wide, Narrow&& narrow) {
    const auto two = [&](unsigned a, unsigned b) {
        return static_cast<unsigned>(narrow(__uint_as_float(a))) |
               static_cast<unsigned>(narrow(__uint_as_float(b))) << 16;
    };
    return make_uint2(two(wide.x, wide.y), two(wide.z, wide.w));
}

template <class Widen>
__device__ uint4 widen4(const uint2& narrow, Widen&& widen) {
    const auto bits = [&](unsigned half) { return __float_as_uint(widen(static_cast<std::uint16_t>(half))); };
    return make_uint4(bits(narrow.x & 0xFFFFu), bits(narrow.x >> 16), bits(narrow.y & 0xFFFFu), bits(narrow.y >> 16));
}

// A program that converts: 8 bytes of the wire form at a time, 16 of the wider side.
__global__ void __launch_bounds__(kThreads) convert(const __grid_constant__ DeviceProgramView program,
                                                    const __grid_constant__ Bases bases,
                                                    std::uint32_t tiles_per_block) {
    __shared__ CopyDescriptor first;
    const std::uint32_t begin = blockIdx.x * tiles_per_block;
    const std::uint32_t end = min(begin + tiles_per_block, program.tile_count);
    for (std::uint32_t tile = begin; tile < end; ++tile) {
        const std::uint32_t low = program.tiles[tile];
        const std::uint32_t high = program.tiles[tile + 1];
        __syncthreads();
        constexpr int kParts = sizeof(CopyDescriptor) / 16;
        if (static_cast<int>(threadIdx.x) < kParts) {
            reinterpret_cast<uint4*>(&first)[threadIdx.x] =
                reinterpret_cast<const uint4*>(program.descriptors + low)[threadIdx.x];
        }
        __syncthreads();
        constexpr int kTurns = static_cast<int>(CopyProgram::kTileBytes) / (kThreads * 8);
#pragma unroll
        for (int k = 0; k < kTurns; ++k) {
            const std::int64_t at = tile * CopyProgram::kTileBytes + (k * kThreads + threadIdx.x) * 8;
            if (at >= program.wire_bytes) {
                continue;
            }
            const CopyDescriptor& d = at < first.wire_end() ? first : *find(program, low, high, at);
            if (d.unit < 8) {
                convert_pieces(program, low, high, bases, at);
                continue;
            }
            const CopyDescriptor::Place place = d.place(static_cast<std::uint32_t>(at - d.wire_begin));
            const char* source = source_of(d, bases, place.source);
            char* target = target_of(d, bases, place.target);
            switch (d.conversion) {
                case Conversion::kF32Bf16:
                    *reinterpret_cast<uint2*>(target) = narrow4(*reinterpret_cast<const uint4*>(source),
                                                                [](float f) { return bf16_from_f32(f); });
                    break;
                case Conversion::kF32F16:
                    *reinterpret_cast<uint2*>(target) = narrow4(*reinterpret_cast<const uint4*>(source),
                                                                [](float f) { return f16_from_f32(f); });
                    break;
                case Conversion::kBf16F32:
                    *reinterpret_cast<uint4*>(target) = widen4(*reinterpret_cast<const uint2*>(source),
                                                               [](std::uint16_t h) { return f32_from_bf16(h); });
                    break;
                case Conversion::kF16F32:
                    *reinterpret_cast<uint4*>(target) = widen4(*reinterpret_cast<const uint2*>(source),
                                                               [](std::uint16_t h) { return f32_from_f16(h); });
                    break;
                default:
                    *reinterpret_cast<uint2*>(target) = *reinterpret_cast<const uint2*>(source);
            }
        }
    }
}

struct Grid {
    std::uint32_t blocks;
    std::uint32_t tiles_per_block;
};

Grid grid_for(std::uint32_t tiles) {
    std::uint32_t per_block = tiles / kEnoughBlocks;
    per_block = per_block < 1 ? 1 : per_block > kMostTilesPerBlock ? kMostTilesPerBlock : per_block;
    return {(tiles + per_block - 1) / per_block, per_block};
}

Bases to_bases(const RunBases& bases) {
    return {{nullptr, reinterpret_cast<char*>(bases.wire),
             const_cast<char*>(reinterpret_cast<const char*>(bases.gathered))}};
}

}  // namespace

Status launch_copy(const DeviceProgramView& program, const RunBases& bases, const HashSink* hash, CUstream_st* stream) {
    if (program.tile_count == 0) {
        return ok_status();
    }
    const Grid grid = grid_for(program.tile_count);
    if (program.converts) {
        convert<<<grid.blocks, kThreads, 0, stream>>>(program, to_bases(bases), grid.tiles_per_block);
    } else if (hash != nullptr) {
        move<Job::kCopy, true>
            <<<grid.blocks, kThreads, 0, stream>>>(program, to_bases(bases), *hash, grid.tiles_per_block);
    } else {
        move<Job::kCopy, false>
            <<<grid.blocks, kThreads, 0, stream>>>(program, to_bases(bases), HashSink{}, grid.tiles_per_block);
    }
    return from_cuda(cudaGetLastError(), "launching a copy kernel");
}

Status launch_hash(const DeviceProgramView& program, const RunBases& bases, CopySide side, const HashSink& hash,
                   CUstream_st* stream) {
    if (program.tile_count == 0) {
        *hash.digest = 0;
        return ok_status();
    }
    const Grid grid = grid_for(program.tile_count);
    if (side == CopySide::kSource) {
        move<Job::kHashSource, true>
            <<<grid.blocks, kThreads, 0, stream>>>(program, to_bases(bases), hash, grid.tiles_per_block);
    } else {
        move<Job::kHashTarget, true>
            <<<grid.blocks, kThreads, 0, stream>>>(program, to_bases(bases), hash, grid.tiles_per_block);
    }
    return from_cuda(cudaGetLastError(), "launching a checksum kernel");
}

}  // namespace sluice

#include "runtime/cuda/copy_kernels.h"

#include "runtime/base/float_bits.h"
#include "runtime/base/mix64.h"
#include "runtime/cuda/copy_program.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/cuda/launch.h"
#include "runtime/cuda/segment_secrets.h"

#include <cuda_runtime.h>

#include <type_traits>

namespace sluice {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
// A warp moves its part of a tile in steps: each lane has some vectors in flight, and those of the next step with them.
constexpr std::int64_t kWarpBytes = CopyProgram::kTileBytes / kWarps;
constexpr int kVectors = 4;
constexpr std::int64_t kStepBytes = 32 * 16 * kVectors;
constexpr int kSteps = static_cast<int>(kWarpBytes / kStepBytes);
constexpr int kSegments = static_cast<int>(kWarpBytes / 1024);  // of a checksum
static_assert(kSegments == 8 && kSegments == 2 * kSteps);
// A block that has more than one tile leaves so many blocks for every multiprocessor.
constexpr std::uint32_t kEnoughBlocks = 4096;

struct Bases {
    char* of[kCopyBases];
};

enum class Job { kCopy, kHashSource, kHashTarget };

// Called by all threads of a block: `held`, in shared memory, becomes the descriptor of that number.
__device__ void hold(const DeviceProgramView& program, std::uint32_t index, CopyDescriptor& held) {
    __syncthreads();
    constexpr int kParts = sizeof(CopyDescriptor) / 16;
    if (static_cast<int>(threadIdx.x) < kParts) {
        reinterpret_cast<uint4*>(&held)[threadIdx.x] =
            reinterpret_cast<const uint4*>(program.descriptors + index)[threadIdx.x];
    }
    __syncthreads();
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
        const CopyDescriptor& d = program.descriptors[program.find(low, high, at)];
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

/// Hashes the eight segments of a warp's part of a tile: XXH3-64 of 1 KiB, whose accumulators are sums. In each step lane l has pieces
/// l and l + 32 of two segments.
class SegmentHasher {
public:
    static constexpr int kBlocks = 4;                       // that a multiprocessor has at a time
    static constexpr bool kAhead = true;                    // the next step is loaded before this one is hashed
    static constexpr std::uint32_t kMostTilesPerBlock = 4;  // they share the adding up at its end

    __device__ SegmentHasher(const std::uint64_t* secrets, int lane) : secrets_(secrets), lane_(lane) {
        for (int half = 0; half < 2; ++half) {
            secret_[2 * half] = secrets[2 * (lane + 32 * half)];
            secret_[2 * half + 1] = secrets[2 * (lane + 32 * half) + 1];
        }
    }

    __device__ void add(const uint4 (&data)[kVectors], int step) {
#pragma unroll
        for (int segment = 0; segment < 2; ++segment) {
            std::uint64_t acc0 = 0;
            std::uint64_t acc1 = 0;
            accumulate(data[2 * segment], secret_[0], secret_[1], acc0, acc1);
            accumulate(data[2 * segment + 1], secret_[2], secret_[3], acc0, acc1);
            acc0_[2 * step + segment] = acc0;
            acc1_[2 * step + segment] = acc1;
        }
    }

    /// All steps were added. Each lane ends up with one pair of accumulators of one segment, so that all of them are merged at
    /// once. `index` is the number of the first segment.
    __device__ void finish(std::uint64_t index, std::uint64_t segments) {
        fold<4>(16);
        fold<2>(8);
        fold<1>(4);
        const int pair = lane_ % 4;
        const std::uint64_t start0 = pair == 0   ? kPrime32_3
                                     : pair == 1 ? kPrime64_2
                                     : pair == 2 ? kPrime64_4
                                                 : kPrime64_5;
        const std::uint64_t start1 = pair == 0   ? kPrime64_1
                                     : pair == 1 ? kPrime64_3
                                     : pair == 2 ? kPrime32_2
                                                 : kPrime32_1;
        const std::uint64_t x = (acc0_[0] + start0) ^ secrets_[2 * kSegmentPieces + 2 * pair];
        const std::uint64_t y = (acc1_[0] + start1) ^ secrets_[2 * kSegmentPieces + 2 * pair + 1];
        std::uint64_t merged = (x * y) ^ __umul64hi(x, y);
        merged += shuffle(merged, 2);
        merged += shuffle(merged, 1);
        merged += 1024 * kPrime64_1;
        merged ^= merged >> 37;
        merged *= 0x165667919E3779F9u;
        merged ^= merged >> 32;
        const std::uint64_t mine = index + (lane_ / 16 * 4 + lane_ / 8 % 2 * 2 + lane_ / 4 % 2);
        if (pair == 0 && mine < segments) {
            sum_ += mix64(merged + mine * kGoldenStep);
        }
    }

    /// Of all that this lane has finished.
    [[nodiscard]] __device__ std::uint64_t sum() const { return sum_; }

private:
    // Of twice `kKept` segments each lane keeps the lower or the upper half, and gives the other to its neighbour.
    template <int kKept>
    __device__ void fold(int mask) {
        const bool upper = (lane_ & mask) != 0;
#pragma unroll
        for (int i = 0; i < kKept; ++i) {
            const std::uint64_t give0 = upper ? acc0_[i] : acc0_[i + kKept];
            const std::uint64_t give1 = upper ? acc1_[i] : acc1_[i + kKept];
            acc0_[i] = (upper ? acc0_[i + kKept] : acc0_[i]) + shuffle(give0, mask);
            acc1_[i] = (upper ? acc1_[i + kKept] : acc1_[i]) + shuffle(give1, mask);
        }
    }

    const std::uint64_t* secrets_;
    int lane_;
    std::uint64_t secret_[4];
    std::uint64_t acc0_[kSegments];
    std::uint64_t acc1_[kSegments];
    std::uint64_t sum_ = 0;
};

/// Stands in where nothing is hashed. Blocks of one tile each, in the order of the wire form, keep what is in flight close together,
/// which memory likes best where runs have gaps; more of them at a time stand in for loading ahead.
class NoHasher {
public:
    static constexpr int kBlocks = 6;
    static constexpr bool kAhead = false;
    static constexpr std::uint32_t kMostTilesPerBlock = 1;

    __device__ NoHasher(const std::uint64_t*, int) {}
    __device__ void add(const uint4 (&)[kVectors], int) {}
    __device__ void finish(std::uint64_t, std::uint64_t) {}
    [[nodiscard]] __device__ std::uint64_t sum() const { return 0; }
};

// Adds up what all threads of all blocks have; the last block writes the digest and leaves the sink as it was.
__device__ void finish_hash(const HashSink& sink, std::uint64_t mine, std::int64_t wire_bytes) {
    __shared__ unsigned long long block_sum;
    if (threadIdx.x == 0) {
        block_sum = 0;
    }
    __syncthreads();
    for (int mask = 16; mask >= 4; mask /= 2) {
        mine += shuffle(mine, mask);
    }
    if (threadIdx.x % 32 == 0) {
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

/// Where a vector is read and where it is written.
struct Move {
    const char* source;
    char* target;
};

/// A descriptor of at most one dimension that moves whole vectors: what nearly all of real plans are. What of it lies in a tile.
struct PlainRow {
    std::int64_t begin;  // of the descriptor's wire form
    const char* source;
    char* target;
    std::int64_t source_stride;
    std::int64_t target_stride;
    Divider run;
    std::uint32_t end;  // within the tile

    __device__ Move locate(std::int64_t at) const {
        const auto offset = static_cast<std::uint32_t>(at - begin);
        const std::uint32_t row = run.quotient(offset);
        const std::uint32_t in_run = offset - row * run.divisor;
        return {source + static_cast<std::int64_t>(row) * source_stride + in_run,
                target + static_cast<std::int64_t>(row) * target_stride + in_run};
    }
};

// Tiles of at most so many plain descriptors are looked up in shared memory.
constexpr std::uint32_t kMostRows = kThreads;

// Called by all threads of a block: the descriptors of a tile as rows, in shared memory; false when one of them is not plain, or they
// are too many.
__device__ bool hold_rows(const DeviceProgramView& program, const Bases& bases, std::uint32_t tile, PlainRow* rows) {
    const std::uint32_t low = program.tiles[tile];
    const std::uint32_t count = program.tiles[tile + 1] - low + 1;
    bool plain = count <= kMostRows;
    if (plain && threadIdx.x < count) {
        const CopyDescriptor& d = program.descriptors[low + threadIdx.x];
        const std::int64_t end = d.wire_end() - tile * CopyProgram::kTileBytes;
        rows[threadIdx.x] = {d.wire_begin,
                             source_of(d, bases, d.source),
                             target_of(d, bases, d.target),
                             d.rank > 0 ? d.dims[0].source_stride : 0,
                             d.rank > 0 ? d.dims[0].target_stride : 0,
                             d.run,
                             static_cast<std::uint32_t>(end < CopyProgram::kTileBytes ? end : CopyProgram::kTileBytes)};
        plain = d.unit == 16 && d.rank <= 1;
    }
    return __syncthreads_and(plain) != 0;
}

/// A tile within one plain descriptor, in registers.
struct OneRowTile {
    static constexpr bool kWhole = true;  // every vector is a whole one

    const PlainRow row;

    __device__ Move locate(std::int64_t at) const { return row.locate(at); }
};

/// A tile of several plain descriptors, or the last one. All lanes of a warp ask at the same time, for vectors side by side.
class RowsTile {
public:
    static constexpr bool kWhole = false;

    __device__ RowsTile(const DeviceProgramView& program, std::uint32_t tile, const PlainRow* rows)
        : rows_(rows), begin_(tile * CopyProgram::kTileBytes), lane_(threadIdx.x % 32) {
        const std::uint32_t count = program.tiles[tile + 1] - program.tiles[tile] + 1;
        const std::int64_t rest = program.wire_bytes - begin_;
        bytes_ = static_cast<std::uint32_t>(rest < CopyProgram::kTileBytes ? rest : CopyProgram::kTileBytes);
        step_ = (count + 31) / 32;
        const std::uint32_t mine = lane_ * step_;
        before_ = mine == 0 ? 0 : mine < count ? rows[mine - 1].end : CopyProgram::kTileBytes;
    }

    __device__ Move locate(std::int64_t at) const {
        const auto offset = static_cast<std::uint32_t>(at - begin_);
        // The last of the lanes' rows that begins at or before the warp's first vector, and on from there.
        std::uint32_t row = (__popc(__ballot_sync(0xFFFFFFFFu, before_ <= offset - lane_ * 16)) - 1) * step_;
        if (offset >= bytes_) {
            return {nullptr, nullptr};
        }
        while (rows_[row].end <= offset) {
            ++row;
        }
        return rows_[row].locate(at);
    }

    /// What stands for a vector that is not whole.
    template <Job kJob>
    __device__ uint4 pieces(std::int64_t /*at*/) const {
        return make_uint4(0, 0, 0, 0);  // beyond the end
    }

private:
    const PlainRow* rows_;
    std::int64_t begin_;
    std::uint32_t lane_;
    std::uint32_t bytes_;
    std::uint32_t step_;    // between rows that lanes stand for
    std::uint32_t before_;  // where this lane's row begins in the tile
};

// Nulls for what is no whole vector. Not inlined: the registers are for plain tiles.
__device__ __noinline__ Move locate_any(const DeviceProgramView& program, const Bases& bases, std::uint32_t low,
                                        std::uint32_t high, std::int64_t at) {
    if (at >= program.wire_bytes) {
        return {nullptr, nullptr};
    }
    const CopyDescriptor& d = program.descriptors[program.find(low, high, at)];
    if (d.unit != 16) {
        return {nullptr, nullptr};
    }
    const CopyDescriptor::Place place = d.place(static_cast<std::uint32_t>(at - d.wire_begin));
    return {source_of(d, bases, place.source), target_of(d, bases, place.target)};
}

/// Any tile: each vector looks for its descriptor.
struct AnyTile {
    static constexpr bool kWhole = false;

    const DeviceProgramView& program;
    const Bases& bases;
    std::uint32_t low, high;

    __device__ Move locate(std::int64_t at) const { return locate_any(program, bases, low, high, at); }

    template <Job kJob>
    __device__ uint4 pieces(std::int64_t at) const {
        return at < program.wire_bytes ? move_pieces<kJob>(program, low, high, bases, at) : make_uint4(0, 0, 0, 0);
    }
};

template <Job kJob, class Tile>
__device__ void load_step(const Tile& tile, std::int64_t begin, uint4 (&data)[kVectors], char* (&to)[kVectors]) {
    Move moves[kVectors];
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
        moves[k] = tile.locate(begin + k * 512);
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
        const char* from = kJob == Job::kHashTarget ? moves[k].target : moves[k].source;
        if (Tile::kWhole || from != nullptr) {
            data[k] = *reinterpret_cast<const uint4*>(from);
        }
        to[k] = moves[k].target;
    }
    if constexpr (!Tile::kWhole) {
#pragma unroll
        for (int k = 0; k < kVectors; ++k) {
            if (to[k] == nullptr) {
                data[k] = tile.template pieces<kJob>(begin + k * 512);
            }
        }
    }
}

// The warp's part of a tile. `begin` is the lane's first byte.
template <Job kJob, class Tile, class Hasher>
__device__ __forceinline__ void move_tile(const Tile& tile, std::int64_t begin, Hasher& hasher) {
    constexpr bool kAhead = Hasher::kAhead && Tile::kWhole;  // lookups leave no registers for it
    uint4 data[kVectors];
    char* to[kVectors];
    if (kAhead) {
        load_step<kJob>(tile, begin, data, to);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        uint4 next[kVectors];
        char* next_to[kVectors];
        if (!kAhead) {
            load_step<kJob>(tile, begin + step * kStepBytes, data, to);
        } else if (step + 1 < kSteps) {
            load_step<kJob>(tile, begin + (step + 1) * kStepBytes, next, next_to);
        }
#pragma unroll
        for (int k = 0; k < kVectors; ++k) {
            if (kJob == Job::kCopy && (Tile::kWhole || to[k] != nullptr)) {
                *reinterpret_cast<uint4*>(to[k]) = data[k];
            }
        }
        hasher.add(data, step);
        if (kAhead && step + 1 < kSteps) {
#pragma unroll
            for (int k = 0; k < kVectors; ++k) {
                data[k] = next[k];
                to[k] = next_to[k];
            }
        }
    }
}

template <Job kJob, class Hasher>
__global__ void __launch_bounds__(kThreads, Hasher::kBlocks)
    move(const __grid_constant__ DeviceProgramView program, const __grid_constant__ Bases bases,
         const __grid_constant__ HashSink sink, std::uint32_t tiles_per_block) {
    __shared__ std::aligned_storage_t<sizeof(PlainRow), 16> row_memory[kMostRows];
    auto* rows = reinterpret_cast<PlainRow*>(row_memory);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Hasher hasher(sink.secrets, lane);
    const std::uint64_t segments = (static_cast<std::uint64_t>(program.wire_bytes) + 1023) / 1024;

    const std::uint32_t begin = blockIdx.x * tiles_per_block;
    const std::uint32_t end = min(begin + tiles_per_block, program.tile_count);
    for (std::uint32_t tile = begin; tile < end; ++tile) {
        if (tile > begin) {
            __syncthreads();  // nobody reads the last tile's rows any more
        }
        const bool plain = hold_rows(program, bases, tile, rows);
        const std::int64_t warp_begin = tile * CopyProgram::kTileBytes + warp * kWarpBytes;
        const std::int64_t at = warp_begin + lane * 16;
        if (plain && rows[0].end == CopyProgram::kTileBytes) {
            move_tile<kJob>(OneRowTile{rows[0]}, at, hasher);
        } else if (plain) {
            move_tile<kJob>(RowsTile(program, tile, rows), at, hasher);
        } else {
            move_tile<kJob>(AnyTile{program, bases, program.tiles[tile], program.tiles[tile + 1]}, at, hasher);
        }
        hasher.finish(static_cast<std::uint64_t>(warp_begin) / 1024, segments);
    }
    if (!std::is_same_v<Hasher, NoHasher>) {
        finish_hash(sink, hasher.sum(), program.wire_bytes);
    }
}

// Widening and narrowing between f32 and f64 as processors do it: a NaN keeps its sign and the upper part of its payload.
__device__ double to_double(float value) {
    const std::uint32_t bits = __float_as_uint(value);
    const std::uint64_t nan = static_cast<std::uint64_t>(bits & 0x80000000u) << 32 | 0x7FF8000000000000u |
                              static_cast<std::uint64_t>(bits & 0x7FFFFFu) << 29;
    return value != value ? __longlong_as_double(static_cast<long long>(nan)) : static_cast<double>(value);
}
__device__ float quiet_float(double nan) {
    const auto bits = static_cast<std::uint64_t>(__double_as_longlong(nan));
    return __uint_as_float((static_cast<std::uint32_t>(bits >> 32) & 0x80000000u) | 0x7FC00000u |
                           (static_cast<std::uint32_t>(bits >> 29) & 0x7FFFFFu));
}

__device__ std::uint64_t load_bits(const char* bytes, int size) {
    std::uint64_t bits = 0;
    for (int i = 0; i < size; ++i) {
        bits |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    }
    return bits;
}

// One element of any two of the four types that convert into each other, as bits.
__device__ std::uint64_t converted(DType from, DType to, std::uint64_t bits) {
    if (from == DType::kF64) {
        const double value = __longlong_as_double(static_cast<long long>(bits));
        if (value != value) {
            const float nan = quiet_float(value);
            return to == DType::kF32   ? __float_as_uint(nan)
                   : to == DType::kF16 ? f16_from_f32(nan)
                                       : bf16_from_f32(nan);
        }
        // Rounded once, also to 16 bits.
        return to == DType::kF32   ? __float_as_uint(static_cast<float>(value))
               : to == DType::kF16 ? f16_from_f64(value)
                                   : bf16_from_f64(value);
    }
    const float value = from == DType::kF32   ? __uint_as_float(static_cast<unsigned>(bits))
                        : from == DType::kF16 ? f32_from_f16(static_cast<std::uint16_t>(bits))
                                              : f32_from_bf16(static_cast<std::uint16_t>(bits));
    switch (to) {
        case DType::kF64:
            return static_cast<std::uint64_t>(__double_as_longlong(to_double(value)));
        case DType::kF32:
            return __float_as_uint(value);
        case DType::kF16:
            return f16_from_f32(value);
        default:
            return bf16_from_f32(value);
    }
}

// All elements that begin within 8 bytes of the wire form, one by one, wherever they lie.
__device__ __noinline__ void convert_pieces(const DeviceProgramView& program, const Bases& bases, std::uint32_t low,
                                            std::uint32_t high, std::int64_t begin) {
    const std::int64_t end = begin + 8 < program.wire_bytes ? begin + 8 : program.wire_bytes;
    for (std::int64_t at = begin; at < end;) {
        const CopyDescriptor& d = program.descriptors[program.find(low, high, at)];
        const auto offset = static_cast<std::uint32_t>(at - d.wire_begin);
        const std::uint32_t item = 1u << d.wire_shift;
        if (offset % item != 0) {
            at += item - offset % item;  // the rest of one that began before
            continue;
        }
        const CopyDescriptor::Place place = d.place(offset);
        const char* source = source_of(d, bases, place.source);
        char* target = target_of(d, bases, place.target);
        if (d.conversion == Conversion::kNone) {
            *target = *source;
        } else {
            const std::uint64_t bits = converted(d.from, d.to, load_bits(source, 1 << d.source_shift));
            for (int i = 0; i < 1 << d.target_shift; ++i) {
                target[i] = static_cast<char>(bits >> (8 * i));
            }
        }
        at += item;
    }
}

template <class Narrow>
__device__ uint2 narrow4(const uint4& wide, Narrow&& narrow) {
    const auto two = [&](unsigned a, unsigned b) {
        return static_cast<unsigned>(narrow(__uint_as_float(a))) | static_cast<unsigned>(narrow(__uint_as_float(b)))
                                                                       << 16;
    };
    return make_uint2(two(wide.x, wide.y), two(wide.z, wide.w));
}

template <class Widen>
__device__ uint4 widen4(const uint2& narrow, Widen&& widen) {
    const auto bits = [&](unsigned half) { return __float_as_uint(widen(static_cast<std::uint16_t>(half))); };
    return make_uint4(bits(narrow.x & 0xFFFFu), bits(narrow.x >> 16), bits(narrow.y & 0xFFFFu), bits(narrow.y >> 16));
}

/// Half a vector of the wire form and what it becomes.
template <Conversion kConversion>
struct Converter {
    static constexpr bool kNarrows = kConversion == Conversion::kF32Bf16 || kConversion == Conversion::kF32F16;
    using From = std::conditional_t<kNarrows, uint4, uint2>;
    using To = std::conditional_t<kNarrows || kConversion == Conversion::kNone, uint2, uint4>;

    static __device__ To apply(const From& from) {
        if constexpr (kConversion == Conversion::kF32Bf16) {
            return narrow4(from, [](float f) { return bf16_from_f32(f); });
        } else if constexpr (kConversion == Conversion::kF32F16) {
            return narrow4(from, [](float f) { return f16_from_f32(f); });
        } else if constexpr (kConversion == Conversion::kBf16F32) {
            return widen4(from, [](std::uint16_t h) { return f32_from_bf16(h); });
        } else if constexpr (kConversion == Conversion::kF16F32) {
            return widen4(from, [](std::uint16_t h) { return f32_from_f16(h); });
        } else {
            return from;
        }
    }
};

constexpr int kConvertTurns = static_cast<int>(CopyProgram::kTileBytes) / (kThreads * 8);
constexpr int kConvertAtOnce = 8;
constexpr std::uint32_t kMostConvertedTilesPerBlock = 4;

// A tile within one descriptor, in whole halves of vectors.
template <Conversion kConversion>
__device__ void convert_tile(const CopyDescriptor& d, const Bases& bases, std::int64_t begin) {
    using C = Converter<kConversion>;
    for (int turn = 0; turn < kConvertTurns; turn += kConvertAtOnce) {
        typename C::From data[kConvertAtOnce];
        char* to[kConvertAtOnce];
#pragma unroll
        for (int k = 0; k < kConvertAtOnce; ++k) {
            const std::int64_t at = begin + ((turn + k) * kThreads + static_cast<int>(threadIdx.x)) * 8;
            const CopyDescriptor::Place place = d.place(static_cast<std::uint32_t>(at - d.wire_begin));
            data[k] = *reinterpret_cast<const typename C::From*>(source_of(d, bases, place.source));
            to[k] = target_of(d, bases, place.target);
        }
#pragma unroll
        for (int k = 0; k < kConvertAtOnce; ++k) {
            *reinterpret_cast<typename C::To*>(to[k]) = C::apply(data[k]);
        }
    }
}

template <Conversion kConversion>
__device__ void convert_half(const char* source, char* target) {
    using C = Converter<kConversion>;
    *reinterpret_cast<typename C::To*>(target) = C::apply(*reinterpret_cast<const typename C::From*>(source));
}

// Calls `visit` with the conversion as a type.
template <class Visit>
__device__ void with_conversion(Conversion conversion, Visit&& visit) {
    switch (conversion) {
        case Conversion::kF32Bf16:
            return visit(std::integral_constant<Conversion, Conversion::kF32Bf16>());
        case Conversion::kF32F16:
            return visit(std::integral_constant<Conversion, Conversion::kF32F16>());
        case Conversion::kBf16F32:
            return visit(std::integral_constant<Conversion, Conversion::kBf16F32>());
        case Conversion::kF16F32:
            return visit(std::integral_constant<Conversion, Conversion::kF16F32>());
        default:
            return visit(std::integral_constant<Conversion, Conversion::kNone>());
    }
}

// A program that converts: 8 bytes of the wire form at a time, 16 of the wider side.
__global__ void __launch_bounds__(kThreads)
    convert(const __grid_constant__ DeviceProgramView program, const __grid_constant__ Bases bases,
            std::uint32_t tiles_per_block) {
    __shared__ CopyDescriptor first;
    const std::uint32_t begin = blockIdx.x * tiles_per_block;
    const std::uint32_t end = min(begin + tiles_per_block, program.tile_count);
    for (std::uint32_t tile = begin; tile < end; ++tile) {
        const std::uint32_t low = program.tiles[tile];
        const std::uint32_t high = program.tiles[tile + 1];
        const std::int64_t tile_begin = tile * CopyProgram::kTileBytes;
        hold(program, low, first);
        if (first.unit >= 8 && tile_begin + CopyProgram::kTileBytes <= first.wire_end()) {
            with_conversion(first.conversion, [&](auto conversion) {
                convert_tile<decltype(conversion)::value>(first, bases, tile_begin);
            });
            continue;
        }
        for (int turn = 0; turn < kConvertTurns; ++turn) {
            const std::int64_t at = tile_begin + (turn * kThreads + static_cast<int>(threadIdx.x)) * 8;
            if (at >= program.wire_bytes) {
                break;
            }
            const CopyDescriptor& d = program.descriptors[program.find(low, high, at)];
            if (d.unit < 8) {
                convert_pieces(program, bases, low, high, at);
                continue;
            }
            const CopyDescriptor::Place place = d.place(static_cast<std::uint32_t>(at - d.wire_begin));
            with_conversion(d.conversion, [&](auto conversion) {
                convert_half<decltype(conversion)::value>(source_of(d, bases, place.source),
                                                          target_of(d, bases, place.target));
            });
        }
    }
}

struct Grid {
    std::uint32_t blocks;
    std::uint32_t tiles_per_block;
};

Grid grid_for(std::uint32_t tiles, std::uint32_t most_per_block) {
    std::uint32_t per_block = tiles / kEnoughBlocks;
    per_block = per_block < 1 ? 1 : per_block > most_per_block ? most_per_block : per_block;
    return {(tiles + per_block - 1) / per_block, per_block};
}

Bases to_bases(const RunBases& bases) {
    return {{nullptr, reinterpret_cast<char*>(bases.wire),
             const_cast<char*>(reinterpret_cast<const char*>(bases.gathered))}};
}

template <Job kJob, class Hasher>
Status launch_move(const char* what, const DeviceProgramView& program, const RunBases& bases, const HashSink& hash,
                   CUstream_st* stream) {
    const Grid grid = grid_for(program.tile_count, Hasher::kMostTilesPerBlock);
    return launch(what, move<kJob, Hasher>, grid.blocks, kThreads, stream, program, to_bases(bases), hash,
                  grid.tiles_per_block);
}

}  // namespace

Status load_copy_kernels() {
    cudaFuncAttributes ignored{};
    for (const void* kernel :
         {reinterpret_cast<const void*>(&convert), reinterpret_cast<const void*>(&move<Job::kCopy, SegmentHasher>),
          reinterpret_cast<const void*>(&move<Job::kCopy, NoHasher>),
          reinterpret_cast<const void*>(&move<Job::kHashSource, SegmentHasher>),
          reinterpret_cast<const void*>(&move<Job::kHashTarget, SegmentHasher>)}) {
        SLUICE_RETURN_IF_ERROR(from_cuda(cudaFuncGetAttributes(&ignored, kernel), "loading a copy kernel"));
    }
    return ok_status();
}

Status launch_copy(const DeviceProgramView& program, const RunBases& bases, const HashSink* hash, CUstream_st* stream) {
    if (program.tile_count == 0) {
        return ok_status();
    }
    constexpr const char* kWhat = "launching a copy kernel";
    if (program.converts) {
        const Grid grid = grid_for(program.tile_count, kMostConvertedTilesPerBlock);
        return launch(kWhat, convert, grid.blocks, kThreads, stream, program, to_bases(bases), grid.tiles_per_block);
    }
    return hash != nullptr ? launch_move<Job::kCopy, SegmentHasher>(kWhat, program, bases, *hash, stream)
                           : launch_move<Job::kCopy, NoHasher>(kWhat, program, bases, HashSink{}, stream);
}

Status launch_hash(const DeviceProgramView& program, const RunBases& bases, CopySide side, const HashSink& hash,
                   CUstream_st* stream) {
    if (program.tile_count == 0) {
        *hash.digest = 0;
        return ok_status();
    }
    constexpr const char* kWhat = "launching a checksum kernel";
    return side == CopySide::kSource
               ? launch_move<Job::kHashSource, SegmentHasher>(kWhat, program, bases, hash, stream)
               : launch_move<Job::kHashTarget, SegmentHasher>(kWhat, program, bases, hash, stream);
}

}  // namespace sluice

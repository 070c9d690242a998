#pragma once

#include "runtime/base/status.h"
#include "runtime/cuda/copy_descriptor.h"

#include <cstddef>
#include <cstdint>

struct CUstream_st;

/// Launches of the copy and checksum kernels. Nothing here waits or allocates.
namespace sluice {

/// A CopyProgram in memory that the device reads.
struct DeviceProgramView {
    const CopyDescriptor* descriptors = nullptr;
    const std::uint32_t* tiles = nullptr;
    std::int64_t wire_bytes = 0;
    std::uint32_t tile_count = 0;
    bool converts = false;

    /// The number of the descriptor that holds byte `at` of the wire form, one of [low, high]. On the device.
    [[nodiscard]] constexpr std::uint32_t find(std::uint32_t low, std::uint32_t high, std::int64_t at) const {
        while (low < high) {
            const std::uint32_t middle = (low + high + 1) / 2;
            if (descriptors[middle].wire_begin <= at) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        return low;
    }
};

/// Where the bases of a program are in this run; multiples of 16.
struct RunBases {
    std::byte* wire = nullptr;
    const std::byte* gathered = nullptr;
};

/// What a kernel needs to compute a ChunkHash digest. One launch at a time may use a sink.
struct HashSink {
    const std::uint64_t* secrets = nullptr;  ///< segment_secrets(), in device memory.
    std::uint64_t* sum = nullptr;            ///< 0 between launches; device memory.
    std::uint32_t* blocks_done = nullptr;    ///< Likewise.
    std::uint64_t* digest = nullptr;         ///< Written by the last block; pinned memory.
};

/// Loads all kernels of the file onto the current device, which CUDA otherwise does at the first launch, waiting for whatever runs there.
Status load_copy_kernels();

/// Carries out the copies. With `hash` the digest of the wire form too, which a program that converts does not allow.
Status launch_copy(const DeviceProgramView& program, const RunBases& bases, const HashSink* hash, CUstream_st* stream);

enum class CopySide : std::uint8_t { kSource, kTarget };
/// The digest of the bytes on one side, in wire order. Not of a program that converts.
Status launch_hash(const DeviceProgramView& program, const RunBases& bases, CopySide side, const HashSink& hash,
                   CUstream_st* stream);

}  // namespace sluice

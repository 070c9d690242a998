#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/strided_copy.h"

#include <cstddef>
#include <cstdint>

/// The strided-copy engine for host memory. Pure functions: any thread, nothing allocated, nothing kept.
namespace sluice {

/// Carries out `copy` from `src` (the base that src_offset counts from) to `dst`. Ranges must not overlap. Items of any size.
void strided_copy(const StridedCopy& copy, const std::byte* src, std::byte* dst);

/// True when converting_copy can convert between the two: f64, f32, f16 and bf16 among each other, by round to nearest even.
bool can_convert(DType from, DType to);
/// The same with a conversion of each element; `copy.item` is size_of(from).
void converting_copy(const StridedCopy& copy, DType from, DType to, const std::byte* src, std::byte* dst);

/// Segments of a chunk's bytes: a GPU hashes them side by side, and XXH3 reads one without scrambling its state.
inline constexpr std::size_t kChunkHashSegment = 1024;

/// The checksum of a chunk: what both sides of a transfer compute over its bytes, fed in destination order. The bytes are
/// cut into segments of kChunkHashSegment, the last one filled up with zeros; all arithmetic is modulo 2^64:
///   digest = number of bytes + sum over i of mix64(XXH3-64(segment i) + i * kGoldenStep)
/// The sum commutes, so segments may be hashed in any order, and knows where each segment lies.
class ChunkHash {
public:
    void reset() { *this = {}; }
    void update(const std::byte* data, std::size_t size);
    /// Feeds the items of `copy`'s source (destination) side, in order. Equal bytes give equal hashes however they are strided.
    void update_source(const StridedCopy& copy, const std::byte* src);
    void update_destination(const StridedCopy& copy, const std::byte* dst);
    [[nodiscard]] std::uint64_t digest() const;

private:
    [[nodiscard]] std::size_t pending() const { return bytes_ % kChunkHashSegment; }

    std::uint64_t bytes_ = 0;
    std::uint64_t sum_ = 0;                             // of the segments that are complete
    alignas(64) std::byte segment_[kChunkHashSegment];  // the first pending() bytes of the one that is not
};

}  // namespace sluice

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

/// XXH3-64 of bytes fed in walking order: what both sides of a transfer compute over a chunk, in destination order.
class ChunkHash {
public:
    ChunkHash();
    void reset();
    void update(const std::byte* data, std::size_t size);
    /// Feeds the items of `copy`'s source (destination) side, in order. Equal bytes give equal hashes however they are strided.
    void update_source(const StridedCopy& copy, const std::byte* src);
    void update_destination(const StridedCopy& copy, const std::byte* dst);
    [[nodiscard]] std::uint64_t digest() const;

private:
    struct alignas(64) State {
        std::byte bytes[576];
    };
    State state_;
};

}  // namespace sluice

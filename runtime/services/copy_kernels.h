#pragma once

#include <cstddef>
#include <cstdint>

/// What the copy engine is made of. Internal to runtime/services.
namespace sluice::kernels {

/// A copy of rows x columns items of `item` bytes between two places with byte strides.
struct Box {
    std::int64_t rows = 1;
    std::int64_t columns = 1;
    std::int64_t src_row = 0;
    std::int64_t src_column = 0;
    std::int64_t dst_row = 0;
    std::int64_t dst_column = 0;
    std::size_t item = 1;
};

using CopyBox = void (*)(const Box& box, const std::byte* src, std::byte* dst);

/// The loop for items of this size, by ordinary stores.
CopyBox copy_box_for(std::size_t item);

/// The loop for boxes whose neighbours in a column lie together in the source (src_row == item) and those in a row
/// together in the destination (dst_column == item), or nullptr for items other than 1, 2, 4 and 8 bytes.
CopyBox transpose_box_for(std::size_t item);

/// The loop for long items that does not bring the destination into the caches: half the memory traffic of a copy
/// that is larger than they are. Ends with the stores visible to other threads that synchronise with this one.
/// Without AVX2 it is the loop for any x86-64.
CopyBox streaming_copy_box(bool avx2);

}  // namespace sluice::kernels

#include "runtime/services/copy_engine.h"

#include "runtime/services/copy_kernels.h"

#include <algorithm>
#include <cstring>

namespace sluice {
namespace {

using kernels::Box;

// Streaming pays once the destination would push other data out of the caches, and only for runs of several lines.
constexpr std::int64_t kStreamTotal = std::int64_t{1} << 20;
constexpr std::int64_t kStreamItem = 256;
// Transposes of items up to this size go through tiles.
constexpr std::int64_t kTileItem = 16;
constexpr std::int64_t kTileBytes = 16384;
constexpr std::int64_t kLine = 64;

// Moves the dimension whose neighbours share cache lines of the source next to the innermost one, if it is another
// one: the two are a transpose then.
bool arrange_transpose(StridedCopy& copy) {
    const std::size_t rank = copy.sizes.size();
    const std::size_t inner = rank - 1;
    if (rank < 2 || copy.item > kTileItem) {
        return false;
    }
    std::size_t nearest = inner;
    for (std::size_t d = 0; d < inner; ++d) {
        if (copy.src_strides[d] > 0 && copy.src_strides[d] < copy.src_strides[nearest]) {
            nearest = d;
        }
    }
    if (nearest == inner || copy.src_strides[nearest] >= kLine) {
        return false;
    }
    std::swap(copy.sizes[nearest], copy.sizes[inner - 1]);
    std::swap(copy.src_strides[nearest], copy.src_strides[inner - 1]);
    std::swap(copy.dst_strides[nearest], copy.dst_strides[inner - 1]);
    return true;
}

// A transpose, tile by tile through a small buffer: each line of the source and of the destination is touched once, so
// that it does not matter that rows a power of two apart share their place in the caches.
void copy_tiles(kernels::CopyBox copy_box, const Box& box, const std::byte* src, std::byte* dst) {
    alignas(kLine) std::byte buffer[kTileBytes];
    const auto item = static_cast<std::int64_t>(box.item);
    const std::int64_t side = item <= 4 ? 64 : 32;
    Box load;  // Rows of a tile are what lies together in the source.
    load.item = box.item;
    load.src_row = box.src_column;
    load.src_column = box.src_row;
    load.dst_row = side * item;
    load.dst_column = item;
    Box store;
    store.item = box.item;
    store.src_row = item;
    store.src_column = side * item;
    store.dst_row = box.dst_row;
    store.dst_column = box.dst_column;
    for (std::int64_t r = 0; r < box.rows; r += side) {
        store.rows = load.columns = std::min(side, box.rows - r);
        for (std::int64_t c = 0; c < box.columns; c += side) {
            store.columns = load.rows = std::min(side, box.columns - c);
            copy_box(load, src + r * box.src_row + c * box.src_column, buffer);
            copy_box(store, buffer, dst + r * box.dst_row + c * box.dst_column);
        }
    }
}

}  // namespace

void strided_copy(const StridedCopy& copy, const std::byte* src, std::byte* dst) {
    StridedCopy walk = coalesce(copy);
    const std::int64_t total = walk.bytes();
    if (total == 0) {
        return;
    }
    if (walk.sizes.empty()) {
        std::memcpy(dst + walk.dst_offset, src + walk.src_offset, static_cast<std::size_t>(walk.item));
        return;
    }
    const bool transpose = arrange_transpose(walk);

    const std::size_t rank = walk.sizes.size();
    Box box;
    box.item = static_cast<std::size_t>(walk.item);
    box.columns = walk.sizes[rank - 1];
    box.src_column = walk.src_strides[rank - 1];
    box.dst_column = walk.dst_strides[rank - 1];
    if (rank >= 2) {
        box.rows = walk.sizes[rank - 2];
        box.src_row = walk.src_strides[rank - 2];
        box.dst_row = walk.dst_strides[rank - 2];
    }
    const bool stream = walk.item >= kStreamItem && total >= kStreamTotal;
    const kernels::CopyBox copy_box = stream ? kernels::streaming_copy_box() : kernels::copy_box_for(box.item);

    const std::size_t outer_rank = rank >= 2 ? rank - 2 : 0;
    walk.sizes.resize(outer_rank);
    walk.src_strides.resize(outer_rank);
    walk.dst_strides.resize(outer_rank);
    for_each_item(walk, [&](std::int64_t src_offset, std::int64_t dst_offset) {
        if (transpose) {
            copy_tiles(copy_box, box, src + src_offset, dst + dst_offset);
        } else {
            copy_box(box, src + src_offset, dst + dst_offset);
        }
    });
}

}  // namespace sluice

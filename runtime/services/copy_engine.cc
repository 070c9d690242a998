#include "runtime/services/copy_engine.h"

#include "runtime/services/copy_kernels.h"
#include "runtime/services/cpu_features.h"

#include <cstring>
#include <utility>

namespace sluice {
namespace {

using kernels::Box;

// Streaming pays once the destination would push other data out of the caches, and for runs of several lines. Where
// the destination has no gaps the processor does well by itself, and longer runs are needed.
constexpr std::int64_t kStreamTotal = std::int64_t{1} << 20;
constexpr std::int64_t kStreamItem = 256;
constexpr std::int64_t kStreamGaplessItem = 1536;

// When some dimension is gapless in the source and another one in the destination, makes them the innermost two, in
// this order: the copy is a batch of transposes then.
bool arrange_transpose(StridedCopy& copy) {
    const std::size_t inner = copy.sizes.size() - 1;
    if (copy.dst_strides[inner] != copy.item) {
        return false;
    }
    for (std::size_t d = 0; d < inner; ++d) {
        if (copy.src_strides[d] == copy.item) {
            std::swap(copy.sizes[d], copy.sizes[inner - 1]);
            std::swap(copy.src_strides[d], copy.src_strides[inner - 1]);
            std::swap(copy.dst_strides[d], copy.dst_strides[inner - 1]);
            return true;
        }
    }
    return false;
}

kernels::CopyBox choose_loop(const StridedCopy& walk, std::int64_t total, bool transpose) {
    const auto item = static_cast<std::size_t>(walk.item);
    if (const kernels::CopyBox loop = transpose ? kernels::transpose_box_for(item) : nullptr) {
        return loop;
    }
    const bool gapless = walk.sizes.empty() || walk.dst_strides.back() == walk.item;
    const bool stream = total >= kStreamTotal && walk.item >= (gapless ? kStreamGaplessItem : kStreamItem);
    return stream ? kernels::streaming_copy_box(has_avx2()) : kernels::copy_box_for(item);
}

}  // namespace

void strided_copy(const StridedCopy& copy, const std::byte* src, std::byte* dst) {
    StridedCopy walk = coalesce(copy);
    const std::int64_t total = walk.bytes();
    if (total == 0) {
        return;
    }
    if (walk.sizes.empty() && total < kStreamTotal) {
        std::memcpy(dst + walk.dst_offset, src + walk.src_offset, static_cast<std::size_t>(total));
        return;
    }
    const bool transpose = !walk.sizes.empty() && arrange_transpose(walk);

    const std::size_t rank = walk.sizes.size();
    Box box;
    box.item = static_cast<std::size_t>(walk.item);
    box.src_column = walk.item;
    if (rank >= 1) {
        box.columns = walk.sizes[rank - 1];
        box.src_column = walk.src_strides[rank - 1];
        box.dst_column = walk.dst_strides[rank - 1];
    }
    if (rank >= 2) {
        box.rows = walk.sizes[rank - 2];
        box.src_row = walk.src_strides[rank - 2];
        box.dst_row = walk.dst_strides[rank - 2];
    }
    const kernels::CopyBox copy_box = choose_loop(walk, total, transpose);

    const std::size_t outer_rank = rank >= 2 ? rank - 2 : 0;
    walk.sizes.resize(outer_rank);
    walk.src_strides.resize(outer_rank);
    walk.dst_strides.resize(outer_rank);
    for_each_item(walk, [&](std::int64_t src_offset, std::int64_t dst_offset) {
        copy_box(box, src + src_offset, dst + dst_offset);
    });
}

}  // namespace sluice

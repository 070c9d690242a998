#pragma once

#include "runtime/base/shape.h"

#include <cstddef>
#include <cstdint>

namespace sluice {

/// A copy between two strided boxes, all in bytes:
///   for every index i within `sizes`:
///     dst[dst_offset + sum(i[d] * dst_strides[d]) .. + item)  =  src[src_offset + sum(i[d] * src_strides[d]) .. + item)
/// `sizes`, `src_strides` and `dst_strides` have the same length, outermost dimension first. A source stride may be 0
/// (an expanded source); destination strides make every destination byte distinct. The item is one element, or a run
/// of elements that is contiguous on both sides (see coalesce).
struct StridedCopy {
    std::int64_t src_offset = 0;
    std::int64_t dst_offset = 0;
    std::int64_t item = 1;
    Dims sizes;
    Dims src_strides;
    Dims dst_strides;

    /// Number of items, and number of bytes written.
    [[nodiscard]] std::int64_t items() const { return num_elements(sizes); }
    [[nodiscard]] std::int64_t bytes() const { return items() * item; }

    friend bool operator==(const StridedCopy&, const StridedCopy&) = default;
};

/// The canonical form of a copy that needs no conversion: size-1 dimensions dropped, dimensions ordered by falling
/// destination stride (so that walking it row-major walks the destination in address order), neighbours merged where both
/// sides allow it, and an innermost dimension contiguous on both sides folded into `item`. Two copies of the same
/// bytes between the same places have the same canonical form. With `keep_item` the item stays one element (a copy
/// with a conversion must see elements). Strides must not be negative. A copy of nothing becomes the one dimension [0].
StridedCopy coalesce(const StridedCopy& copy, bool keep_item = false);

/// The source walked in destination order, written without gaps: what packing `copy` does. `copy` must be coalesced.
/// The result's dst_offset is `packed_offset`. With `packed_item` != 0 each item is that many bytes in packed form (a conversion on
/// the way in).
StridedCopy packed_from_source(const StridedCopy& copy, std::int64_t packed_offset, std::int64_t packed_item = 0);
/// The gapless form read and written to the destination: what scattering `copy` does. Same conventions.
StridedCopy destination_from_packed(const StridedCopy& copy, std::int64_t packed_offset, std::int64_t packed_item = 0);

/// Part [begin, end) of the outermost dimension of `copy`, which must have at least one dimension.
StridedCopy slice_outer(const StridedCopy& copy, std::int64_t begin, std::int64_t end);

/// True when the walk in destination order reads (writes) one gapless range of the source (destination).
bool source_is_contiguous(const StridedCopy& copy);
bool destination_is_contiguous(const StridedCopy& copy);

/// Calls `visit(src_offset, dst_offset)` for every item of `copy` in row-major order of its dimensions.
template <class Visit>
void for_each_item(const StridedCopy& copy, Visit&& visit) {
    if (copy.items() == 0) {
        return;
    }
    if (copy.sizes.empty()) {
        visit(copy.src_offset, copy.dst_offset);
        return;
    }
    const std::size_t inner = copy.sizes.size() - 1;
    const std::int64_t inner_size = copy.sizes[inner];
    const std::int64_t inner_src = copy.src_strides[inner];
    const std::int64_t inner_dst = copy.dst_strides[inner];
    Dims index(inner, 0);
    std::int64_t src = copy.src_offset;
    std::int64_t dst = copy.dst_offset;
    while (true) {
        for (std::int64_t i = 0; i < inner_size; ++i) {
            visit(src + i * inner_src, dst + i * inner_dst);
        }
        std::size_t d = inner;
        while (true) {
            if (d == 0) {
                return;
            }
            --d;
            src += copy.src_strides[d];
            dst += copy.dst_strides[d];
            if (++index[d] < copy.sizes[d]) {
                break;
            }
            src -= copy.src_strides[d] * copy.sizes[d];
            dst -= copy.dst_strides[d] * copy.sizes[d];
            index[d] = 0;
        }
    }
}

}  // namespace sluice

#include "runtime/base/strided_copy.h"

#include <cassert>
#include <cstddef>

namespace sluice {
namespace {

// A walk that is gapless on one side: the innermost stride equals the item and each outer stride spans the inner box.
bool is_contiguous(const StridedCopy& copy, const Dims& strides) {
    if (copy.items() == 0) {
        return true;
    }
    std::int64_t expected = copy.item;
    for (std::size_t d = copy.sizes.size(); d-- > 0;) {
        if (copy.sizes[d] == 1) {
            continue;
        }
        if (strides[d] != expected) {
            return false;
        }
        expected *= copy.sizes[d];
    }
    return true;
}

}  // namespace

StridedCopy coalesce(const StridedCopy& copy, bool keep_item) {
    StridedCopy out;
    out.src_offset = copy.src_offset;
    out.dst_offset = copy.dst_offset;
    out.item = copy.item;

    // Insertion sort: a handful of dimensions, usually in order already, and called for every record of a plan.
    boost::container::small_vector<std::size_t, 6> order;
    for (std::size_t d = 0; d < copy.sizes.size(); ++d) {
        if (copy.sizes[d] == 1) {
            continue;
        }
        if (copy.sizes[d] == 0) {
            out.sizes.assign(1, 0);
            out.src_strides.assign(1, 0);
            out.dst_strides.assign(1, 0);
            return out;
        }
        auto place = order.end();
        while (place != order.begin() && copy.dst_strides[*(place - 1)] < copy.dst_strides[d]) {
            --place;
        }
        order.insert(place, d);
    }

    for (const std::size_t d : order) {
        const std::int64_t size = copy.sizes[d];
        const std::int64_t src = copy.src_strides[d];
        const std::int64_t dst = copy.dst_strides[d];
        if (!out.sizes.empty() && out.src_strides.back() == size * src && out.dst_strides.back() == size * dst) {
            out.sizes.back() *= size;
            out.src_strides.back() = src;
            out.dst_strides.back() = dst;
        } else {
            out.sizes.push_back(size);
            out.src_strides.push_back(src);
            out.dst_strides.push_back(dst);
        }
    }
    if (!keep_item && !out.sizes.empty() && out.src_strides.back() == out.item && out.dst_strides.back() == out.item) {
        out.item *= out.sizes.back();
        out.sizes.pop_back();
        out.src_strides.pop_back();
        out.dst_strides.pop_back();
    }
    return out;
}

StridedCopy packed_from_source(const StridedCopy& copy, std::int64_t packed_offset, std::int64_t packed_item) {
    StridedCopy out = copy;
    out.dst_offset = packed_offset;
    out.dst_strides = contiguous_strides(copy.sizes, packed_item != 0 ? packed_item : copy.item);
    return out;
}

StridedCopy destination_from_packed(const StridedCopy& copy, std::int64_t packed_offset, std::int64_t packed_item) {
    StridedCopy out = copy;
    out.src_offset = packed_offset;
    out.src_strides = contiguous_strides(copy.sizes, packed_item != 0 ? packed_item : copy.item);
    return out;
}

StridedCopy slice_outer(const StridedCopy& copy, std::int64_t begin, std::int64_t end) {
    assert(!copy.sizes.empty() && 0 <= begin && begin <= end && end <= copy.sizes[0]);
    StridedCopy out = copy;
    out.sizes[0] = end - begin;
    out.src_offset += begin * copy.src_strides[0];
    out.dst_offset += begin * copy.dst_strides[0];
    return out;
}

bool source_is_contiguous(const StridedCopy& copy) { return is_contiguous(copy, copy.src_strides); }
bool destination_is_contiguous(const StridedCopy& copy) { return is_contiguous(copy, copy.dst_strides); }

}  // namespace sluice

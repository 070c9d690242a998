#include "planner/routing/fragment.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace sluice {

SourceWalk take_items(SourceWalk walk, std::int64_t items, std::int64_t indivisible, std::vector<SourceWalk>& left) {
    // Cuts inside a run stay aligned: 64 items are a cache line of the smallest dtype.
    constexpr std::int64_t kItemAlignment = 64;
    while (true) {
        std::size_t outer = walk.dims.size();
        for (std::size_t d = 0; d < walk.dims.size(); ++d) {
            if (walk.dims[d].size > 1 &&
                (outer == walk.dims.size() || walk.dims[d].dst_stride > walk.dims[outer].dst_stride)) {
                outer = d;
            }
        }
        if (outer == walk.dims.size()) {
            return walk;
        }
        const std::int64_t size = walk.dims[outer].size;
        const std::int64_t per_row = walk.items() / size;
        std::int64_t rows = (items + per_row / 2) / per_row;
        if (per_row == 1 && rows > kItemAlignment) {
            rows -= rows % kItemAlignment;
        }
        if (rows == 0 && per_row <= indivisible) {
            rows = 1;
        }
        if (rows == 0) {
            SourceWalk rest = walk;
            rest.narrow(outer, 1, size);
            left.push_back(std::move(rest));
            walk.select(outer, 0);
            continue;
        }
        if (rows < size) {
            SourceWalk rest = walk;
            rest.narrow(outer, rows, size);
            left.push_back(std::move(rest));
            walk.narrow(outer, 0, rows);
        }
        return walk;
    }
}

Piece piece_from(const CopyRecord& record, const SourceAxes& axes, std::size_t tensor_dims, const OwnedRegion& region,
                 const SourceWalk& walk) {
    Dims strides;  // bytes in the owner's memory per step on each axis
    std::int64_t offset = region.offset;
    for (std::size_t a = 0; a < axes.extents.size(); ++a) {
        const bool part = a == tensor_dims;
        const std::int64_t per_step = a + 1 == tensor_dims ? axes.elements_per_step : 1;
        strides.push_back(part ? axes.unit : region.strides[a] * per_step);
        const bool counts_from_begin = part || static_cast<int>(a) == region.fold.axis;
        offset += (walk.start[a] - (counts_from_begin ? 0 : region.begin[a] / per_step)) * strides[a];
    }
    if (region.fold.axis >= 0) {
        strides.push_back(region.fold.stride);
        offset += walk.start.back() * region.fold.stride;
    }
    Piece piece;
    piece.parameter = record.parameter;
    piece.segment = region.segment;
    piece.source_dtype = record.source_dtype;
    piece.parameter_dtype = record.parameter_dtype;
    piece.copy.src_offset = offset;
    piece.copy.dst_offset = walk.dst_offset;
    piece.copy.item = axes.unit;
    for (const WalkDim& dim : walk.dims) {
        std::int64_t src = 0;
        for (std::size_t a = 0; a < strides.size(); ++a) {
            src += dim.steps[a] * strides[a];
        }
        piece.copy.sizes.push_back(dim.size);
        piece.copy.src_strides.push_back(src);
        piece.copy.dst_strides.push_back(dim.dst_stride);
    }
    piece.copy = coalesce(piece.copy, piece.converts());
    return piece;
}

}  // namespace sluice

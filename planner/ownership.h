#pragma once

#include "planner/catalogue.h"
#include "planner/ids.h"
#include "runtime/base/shape.h"
#include "runtime/base/status.h"
#include "runtime/base/strided_copy.h"

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

/// An axis whose elements take turns in the checkpoint and lie apart in the owner's memory: gate and up columns of a fused
/// expert tensor, of which the trainer keeps all gate rows before all up rows. No axis (-1) when nothing is folded.
struct AxisFold {
    int axis = -1;
    std::int64_t period = 1;  ///< At least 2, and a divisor of the box's extent on the axis.
    std::int64_t stride = 0;  ///< Bytes from an element to the next one within a period.

    friend bool operator==(const AxisFold&, const AxisFold&) = default;
};

/// A box of a checkpoint tensor that a trainer rank can serve, and where it lies in that rank's memory.
/// `begin` and `end` are element coordinates of the full tensor, one per dimension (a 0-d tensor has none).
/// Element (begin + i) lies at byte offset + sum(i[d] * strides[d]) of `segment`; strides are in bytes.
/// On a folded axis the term of i is (i / period) * strides[axis] + (i % period) * fold.stride.
struct OwnedRegion {
    TensorId tensor = 0;
    Dims begin;
    Dims end;
    SegmentId segment = 0;
    std::int64_t offset = 0;
    Dims strides;
    AxisFold fold = {};

    friend bool operator==(const OwnedRegion&, const OwnedRegion&) = default;
};

/// True when the region folds nothing, or an axis that it has by a period that divides the extent there.
bool valid_fold(const OwnedRegion& region);

/// The copy that fills a region from the full, contiguous tensor of this shape: its destination is the owner's memory.
/// `item` is the size of an element. The region must lie in the shape.
StridedCopy region_copy(const OwnedRegion& region, std::span<const std::int64_t> shape, std::int64_t item);

/// All that one trainer rank can serve. Several ranks may own the same box (replicas); their bytes are equal.
struct Ownership {
    std::vector<OwnedRegion> regions;  // sorted by tensor, then begin
    /// Size of each resident segment, and of the gather buffer each group needs (0 = nothing of the group is gathered).
    std::vector<std::int64_t> segment_bytes;
    std::vector<std::int64_t> gathered_bytes;  // by group; empty when nothing is gathered
    /// Pipeline stage of the rank, for the interleaved group order.
    int stage = 0;
};

}  // namespace sluice

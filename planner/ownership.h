#pragma once

#include "planner/catalogue.h"
#include "planner/ids.h"
#include "runtime/base/shape.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <vector>

namespace sluice {

/// A box of a checkpoint tensor that a trainer rank can serve, and where it lies in that rank's memory.
/// `begin` and `end` are element coordinates of the full tensor, one per dimension (a 0-d tensor has none).
/// Element (begin + i) lies at byte offset + sum(i[d] * strides[d]) of `segment`; strides are in bytes.
struct OwnedRegion {
    TensorId tensor = 0;
    Dims begin;
    Dims end;
    SegmentId segment = 0;
    std::int64_t offset = 0;
    Dims strides;
};

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

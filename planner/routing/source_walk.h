#pragma once

#include "planner/demand.h"
#include "runtime/base/dtype.h"
#include "runtime/base/shape.h"
#include "runtime/base/status.h"

#include <boost/container/small_vector.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace sluice {

/// The coordinates in which a record's source is walked: the axes of the checkpoint tensor and, when the record looks at parts
/// of elements (a view as a smaller dtype), one more for the part within an element. All in units of `unit` bytes.
struct SourceAxes {
    Dims extents;
    Dims strides;  ///< Of the full contiguous tensor, in units.
    std::int64_t unit = 1;
    /// Elements of the tensor per step on the last axis of the tensor; more than 1 when a converting record sees wider elements.
    std::int64_t elements_per_step = 1;
    bool parts_of_elements = false;  ///< The last axis counts units within one element.
};

/// One dimension of a walk: `size` steps, each moving the destination and the source coordinates.
struct WalkDim {
    std::int64_t size = 1;
    std::int64_t dst_stride = 0;  ///< Bytes.
    Dims steps;                   ///< Per axis, >= 0.
};

/// A box-shaped walk over a tensor, one unit per item, whose every axis coordinate is start + sum(index * step) without carries between
/// axes: so owners' boxes cut it exactly.
struct SourceWalk {
    Dims start;
    std::int64_t dst_offset = 0;
    boost::container::small_vector<WalkDim, 3> dims;

    [[nodiscard]] std::int64_t items() const;
    /// Largest coordinate that the walk reaches on an axis.
    [[nodiscard]] std::int64_t last(std::size_t axis) const;
    /// Keeps steps [begin, end) of dimension `d`.
    void narrow(std::size_t d, std::int64_t begin, std::int64_t end);
    /// Fixes dimension `d` at `index` and drops it.
    void select(std::size_t d, std::int64_t index);
};

/// The axes for `record` of a tensor with this shape and dtype.
SourceAxes source_axes(std::span<const std::int64_t> shape, DType dtype, const CopyRecord& record);

/// Appends walks that together copy exactly what `record` copies. A flat walk over several axes is split at their borders, by whole
/// periods where it can be. Refuses (plan refused) a record that reads outside the tensor. The record must not be empty.
Status decompose(const CopyRecord& record, const SourceAxes& axes, std::vector<SourceWalk>& out);

/// Calls `visit(interval, part)` for the parts of `walk` within each interval [cuts[i], cuts[i+1]) of an axis. The cuts
/// rise and enclose the walk.
template <class Visit>
void split_on_axis(SourceWalk walk, std::size_t axis, std::span<const std::int64_t> cuts, Visit&& visit);

// Implementation.

namespace routing_detail {

/// The dimension with the largest step on `axis`, or dims.size() when none moves it.
std::size_t leading_dim(const SourceWalk& walk, std::size_t axis);
/// Index of the interval that holds `coordinate`.
std::size_t interval_of(std::span<const std::int64_t> cuts, std::int64_t coordinate);

}  // namespace routing_detail

template <class Visit>
void split_on_axis(SourceWalk walk, std::size_t axis, std::span<const std::int64_t> cuts, Visit&& visit) {
    const std::size_t lead = routing_detail::leading_dim(walk, axis);
    std::size_t interval = routing_detail::interval_of(cuts, walk.start[axis]);
    if (walk.last(axis) < cuts[interval + 1]) {
        visit(interval, std::move(walk));
        return;
    }
    const std::int64_t size = walk.dims[lead].size;
    const std::int64_t step = walk.dims[lead].steps[axis];
    // How far the inner dimensions reach beyond a step of the leading one.
    const std::int64_t reach = walk.last(axis) - walk.start[axis] - step * (size - 1);
    for (std::int64_t i = 0; i < size;) {
        const std::int64_t base = walk.start[axis] + step * i;
        while (base >= cuts[interval + 1]) {
            ++interval;
        }
        const std::int64_t room = cuts[interval + 1] - 1 - reach - base;
        if (room < 0) {
            SourceWalk single = walk;
            single.select(lead, i);
            split_on_axis(std::move(single), axis, cuts, visit);
            ++i;
        } else {
            const std::int64_t end = std::min(size, i + room / step + 1);
            SourceWalk part = walk;
            part.narrow(lead, i, end);
            visit(interval, std::move(part));
            i = end;
        }
    }
}

}  // namespace sluice

#include "planner/routing/source_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace sluice {
namespace {

// A walk before its axes are known: strides in units of the flat tensor.
struct FlatDim {
    std::int64_t size;
    std::int64_t src;
    std::int64_t dst;
};
struct FlatWalk {
    std::int64_t src = 0;
    std::int64_t dst = 0;
    boost::container::small_vector<FlatDim, 6> dims;
};

Dims digits(std::int64_t offset, const SourceAxes& axes) {
    Dims out(axes.extents.size(), 0);
    for (std::size_t a = 0; a < axes.extents.size(); ++a) {
        // Size-1 axes share their stride with the next one; the steps belong to the axis that has room for them.
        if (axes.extents[a] == 1) {
            continue;
        }
        out[a] = offset / axes.strides[a];
        offset %= axes.strides[a];
    }
    if (offset != 0) {
        out.back() += offset;  // Beyond a last axis of size 1: outside, and seen there.
    }
    return out;
}

SourceWalk with_axes(const FlatWalk& flat, const SourceAxes& axes) {
    SourceWalk walk;
    walk.start = digits(flat.src, axes);
    walk.dst_offset = flat.dst;
    for (const FlatDim& dim : flat.dims) {
        walk.dims.push_back({dim.size, dim.dst, digits(dim.src, axes)});
    }
    return walk;
}

FlatWalk narrowed(const FlatWalk& walk, std::size_t d, std::int64_t begin, std::int64_t end) {
    FlatWalk out = walk;
    out.src += begin * walk.dims[d].src;
    out.dst += begin * walk.dims[d].dst;
    out.dims[d].size = end - begin;
    return out;
}

}  // namespace

std::int64_t SourceWalk::items() const {
    std::int64_t n = 1;
    for (const WalkDim& dim : dims) {
        n *= dim.size;
    }
    return n;
}

std::int64_t SourceWalk::last(std::size_t axis) const {
    std::int64_t coordinate = start[axis];
    for (const WalkDim& dim : dims) {
        coordinate += dim.steps[axis] * (dim.size - 1);
    }
    return coordinate;
}

void SourceWalk::narrow(std::size_t d, std::int64_t begin, std::int64_t end) {
    for (std::size_t a = 0; a < start.size(); ++a) {
        start[a] += dims[d].steps[a] * begin;
    }
    dst_offset += dims[d].dst_stride * begin;
    dims[d].size = end - begin;
}

void SourceWalk::select(std::size_t d, std::int64_t index) {
    narrow(d, index, index + 1);
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(d));
}

SourceAxes source_axes(std::span<const std::int64_t> shape, DType dtype, const CopyRecord& record) {
    SourceAxes axes;
    const std::int64_t element = size_of(dtype);
    const StridedCopy& copy = record.copy;
    std::int64_t unit = std::gcd(element, copy.item);
    unit = std::gcd(unit, copy.src_offset);
    for (std::size_t d = 0; d < copy.sizes.size(); ++d) {
        if (copy.sizes[d] > 1) {
            unit = std::gcd(unit, copy.src_strides[d]);
        }
    }
    for (const std::int64_t extent : shape) {
        axes.extents.push_back(extent);
    }
    if (record.converts() && copy.item > element && !axes.extents.empty()) {
        unit = copy.item;
        axes.elements_per_step = copy.item / element;
        axes.extents.back() /= axes.elements_per_step;
    }
    axes.unit = unit;
    axes.parts_of_elements = unit < element || axes.extents.empty();
    if (axes.parts_of_elements) {
        axes.extents.push_back(std::max<std::int64_t>(1, element / unit));
    }
    axes.strides = contiguous_strides(axes.extents);
    return axes;
}

Status decompose(const CopyRecord& record, const SourceAxes& axes, std::vector<SourceWalk>& out) {
    const StridedCopy& copy = record.copy;
    const auto outside = [&] {
        return plan_refused(
            fmt::format("a copy record of {} items of {} bytes reads outside its tensor; correct the loader",
                        copy.items(), copy.item));
    };
    FlatWalk whole{copy.src_offset / axes.unit, copy.dst_offset, {}};
    if (copy.src_offset < 0 || copy.src_offset % axes.unit != 0) {
        return outside();
    }
    for (std::size_t d = 0; d < copy.sizes.size(); ++d) {
        if (copy.sizes[d] == 1) {
            continue;
        }
        if (copy.src_strides[d] < 0 || copy.src_strides[d] % axes.unit != 0) {
            return outside();
        }
        whole.dims.push_back({copy.sizes[d], copy.src_strides[d] / axes.unit, copy.dst_strides[d]});
    }
    if (copy.item > axes.unit) {
        whole.dims.push_back({copy.item / axes.unit, 1, axes.unit});
    }

    std::vector<FlatWalk> open{std::move(whole)};
    while (!open.empty()) {
        const FlatWalk flat = std::move(open.back());
        open.pop_back();
        SourceWalk walk = with_axes(flat, axes);
        std::size_t axis = axes.extents.size();
        while (axis-- > 0 && walk.last(axis) < axes.extents[axis]) {
        }
        if (axis == static_cast<std::size_t>(-1)) {
            out.push_back(std::move(walk));
            continue;
        }
        // The innermost axis that overflows: cut the dimension that takes the largest steps on it.
        const std::int64_t extent = axes.extents[axis];
        const std::size_t lead = routing_detail::leading_dim(walk, axis);
        const bool outermost =
            std::all_of(axes.extents.begin(), axes.extents.begin() + static_cast<std::ptrdiff_t>(axis),
                        [](std::int64_t size) { return size == 1; });
        if (outermost || lead == walk.dims.size()) {
            return outside();
        }
        const std::int64_t step = walk.dims[lead].steps[axis];
        const std::int64_t size = walk.dims[lead].size;
        const std::int64_t reach = walk.last(axis) - walk.start[axis] - step * (size - 1);
        const std::int64_t period = extent / step;
        if (extent % step == 0 && walk.start[axis] + reach < step && size > period) {
            const std::int64_t periods = size / period;
            if (periods * period < size) {
                open.push_back(narrowed(flat, lead, periods * period, size));
            }
            FlatWalk body = narrowed(flat, lead, 0, periods * period);
            const FlatDim inner{period, flat.dims[lead].src, flat.dims[lead].dst};
            body.dims[lead] = {periods, inner.src * period, inner.dst * period};
            if (period > 1) {
                body.dims.insert(body.dims.begin() + static_cast<std::ptrdiff_t>(lead) + 1, inner);
            }
            open.push_back(std::move(body));
            continue;
        }
        const std::int64_t room = extent - 1 - reach - walk.start[axis];
        // Steps before the first one that leaves the axis; a first step that does is looked at alone.
        const std::int64_t head = room < 0 ? 1 : room / step + 1;
        if (head < size) {
            open.push_back(narrowed(flat, lead, head, size));
        }
        FlatWalk first = narrowed(flat, lead, 0, std::min(head, size));
        if (first.dims[lead].size == 1) {
            first.dims.erase(first.dims.begin() + static_cast<std::ptrdiff_t>(lead));
        }
        open.push_back(std::move(first));
    }
    return ok_status();
}

namespace routing_detail {

std::size_t leading_dim(const SourceWalk& walk, std::size_t axis) {
    std::size_t lead = walk.dims.size();
    std::int64_t largest = 0;
    for (std::size_t d = 0; d < walk.dims.size(); ++d) {
        if (walk.dims[d].size > 1 && walk.dims[d].steps[axis] > largest) {
            largest = walk.dims[d].steps[axis];
            lead = d;
        }
    }
    return lead;
}

std::size_t interval_of(std::span<const std::int64_t> cuts, std::int64_t coordinate) {
    const auto above = std::upper_bound(cuts.begin(), cuts.end(), coordinate);
    return static_cast<std::size_t>(above - cuts.begin()) - 1;
}

}  // namespace routing_detail
}  // namespace sluice

#include "planner/routing/fold.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace sluice {
namespace {

std::size_t next_uneven(const SourceWalk& walk, const AxisFold& fold, std::size_t from) {
    const auto axis = static_cast<std::size_t>(fold.axis);
    std::size_t d = from;
    while (d < walk.dims.size() && (walk.dims[d].size == 1 || walk.dims[d].steps[axis] % fold.period == 0)) {
        ++d;
    }
    return d;
}

// The axis in periods, the place within one as the last axis. No step of a dimension may carry from there.
SourceWalk with_place_axis(SourceWalk walk, const AxisFold& fold) {
    const auto axis = static_cast<std::size_t>(fold.axis);
    walk.start.push_back(walk.start[axis] % fold.period);
    walk.start[axis] /= fold.period;
    for (WalkDim& dim : walk.dims) {
        const bool whole = dim.steps[axis] % fold.period == 0;
        dim.steps.push_back(whole ? 0 : dim.steps[axis]);
        dim.steps[axis] = whole ? dim.steps[axis] / fold.period : 0;
    }
    return walk;
}

SourceWalk part_of(const SourceWalk& walk, std::size_t d, std::int64_t begin, std::int64_t end) {
    SourceWalk part = walk;
    part.narrow(d, begin, end);
    return part;
}

// One walk for each place that the dimension reaches within a period.
void split_by_place(const SourceWalk& walk, std::size_t d, const AxisFold& fold, std::vector<SourceWalk>& open) {
    const std::int64_t size = walk.dims[d].size;
    const std::int64_t step = walk.dims[d].steps[static_cast<std::size_t>(fold.axis)];
    const std::int64_t places = fold.period / std::gcd(step, fold.period);
    for (std::int64_t place = 0; place < std::min(places, size); ++place) {
        SourceWalk part = part_of(walk, d, place, size);
        WalkDim& dim = part.dims[d];
        dim.size = (size - place + places - 1) / places;
        dim.dst_stride *= places;
        for (std::int64_t& coordinate : dim.steps) {
            coordinate *= places;
        }
        open.push_back(std::move(part));
    }
}

}  // namespace

void unfold(SourceWalk walk, const OwnedRegion& region, std::vector<SourceWalk>& out) {
    const AxisFold& fold = region.fold;
    if (fold.axis < 0) {
        out.push_back(std::move(walk));
        return;
    }
    const auto axis = static_cast<std::size_t>(fold.axis);
    walk.start[axis] -= region.begin[axis];
    std::vector<SourceWalk> open{std::move(walk)};
    while (!open.empty()) {
        SourceWalk here = std::move(open.back());
        open.pop_back();
        const std::size_t d = next_uneven(here, fold, 0);
        if (d == here.dims.size()) {
            out.push_back(with_place_axis(std::move(here), fold));
            continue;
        }
        const std::int64_t step = here.dims[d].steps[axis];
        if (next_uneven(here, fold, d + 1) != here.dims.size() || fold.period % step != 0) {
            split_by_place(here, d, fold, open);
            continue;
        }
        // The only uneven dimension: whole periods of it are two even ones; what comes before and after carries nowhere.
        const std::int64_t size = here.dims[d].size;
        const std::int64_t places = fold.period / step;
        const std::int64_t first = here.start[axis] % fold.period;
        const std::int64_t head = first < step ? 0 : (fold.period - first + step - 1) / step;
        if (size <= head || (head == 0 && size < places)) {
            out.push_back(with_place_axis(std::move(here), fold));
            continue;
        }
        if (head > 0) {
            open.push_back(part_of(here, d, head, size));
            open.push_back(part_of(here, d, 0, head));
            continue;
        }
        const std::int64_t whole = size / places * places;
        if (whole < size) {
            open.push_back(part_of(here, d, whole, size));
        }
        SourceWalk body = part_of(here, d, 0, whole);
        const WalkDim inner{places, body.dims[d].dst_stride, body.dims[d].steps};
        body.dims[d].size = whole / places;
        body.dims[d].dst_stride *= places;
        for (std::int64_t& coordinate : body.dims[d].steps) {
            coordinate *= places;
        }
        body.dims.insert(body.dims.begin() + static_cast<std::ptrdiff_t>(d) + 1, inner);
        out.push_back(with_place_axis(std::move(body), fold));
    }
}

}  // namespace sluice

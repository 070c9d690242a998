#include "planner/ownership.h"

namespace sluice {

bool valid_fold(const OwnedRegion& region) {
    const auto& [axis, period, stride] = region.fold;
    if (axis == -1) {
        return period == 1 && stride == 0;
    }
    const auto at = static_cast<std::size_t>(axis);
    if (axis < 0 || at >= region.begin.size() || period < 2) {
        return false;
    }
    const std::int64_t extent = region.end[at] - region.begin[at];
    return period <= extent && extent % period == 0;
}

StridedCopy region_copy(const OwnedRegion& region, std::span<const std::int64_t> shape, std::int64_t item) {
    StridedCopy copy;
    copy.item = item;
    copy.dst_offset = region.offset;
    const Dims full = contiguous_strides(shape, item);
    const auto add_dim = [&copy](std::int64_t size, std::int64_t src, std::int64_t dst) {
        copy.sizes.push_back(size);
        copy.src_strides.push_back(src);
        copy.dst_strides.push_back(dst);
    };
    for (std::size_t d = 0; d < full.size(); ++d) {
        copy.src_offset += region.begin[d] * full[d];
        const std::int64_t size = region.end[d] - region.begin[d];
        if (static_cast<int>(d) == region.fold.axis) {
            add_dim(size / region.fold.period, full[d] * region.fold.period, region.strides[d]);
            add_dim(region.fold.period, full[d], region.fold.stride);
        } else {
            add_dim(size, full[d], region.strides[d]);
        }
    }
    return copy;
}

}  // namespace sluice

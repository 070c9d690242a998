#include "planner/box_stream.h"

#include <cstddef>

namespace sluice {
namespace {

// What differs from the predecessor, in the low bits of a box's first number; the number of dimensions lies above.
constexpr std::int64_t kNewDtypes = 1;
constexpr std::int64_t kNewItem = 2;
constexpr std::int64_t kNewSizes = 4;
constexpr std::int64_t kNewStrides = 8;
constexpr std::int64_t kFlagCount = 16;

// Differences wrap around, so that any pair of numbers can be coded and hostile ones are no undefined behaviour.
std::int64_t plus(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
std::int64_t minus(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}
std::int64_t times(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

std::int64_t end_of(std::int64_t offset, std::int64_t item, const Dims& sizes, const Dims& strides) {
    return plus(offset, sizes.empty() ? item : times(sizes[0], strides[0]));
}
std::int64_t source_end(const StridedCopy& c) { return end_of(c.src_offset, c.item, c.sizes, c.src_strides); }
std::int64_t destination_end(const StridedCopy& c) { return end_of(c.dst_offset, c.item, c.sizes, c.dst_strides); }

}  // namespace

void BoxWriter::write(const CodedBox& box, CodedBox& previous) {
    const StridedCopy& copy = box.copy;
    const StridedCopy& before = previous.copy;
    const bool new_dims = copy.sizes.size() != before.sizes.size();
    std::int64_t flags = 0;
    flags |=
        box.source_dtype != previous.source_dtype || box.parameter_dtype != previous.parameter_dtype ? kNewDtypes : 0;
    flags |= copy.item != before.item ? kNewItem : 0;
    flags |= new_dims || copy.sizes != before.sizes ? kNewSizes : 0;
    flags |=
        new_dims || copy.src_strides != before.src_strides || copy.dst_strides != before.dst_strides ? kNewStrides : 0;
    out_.Add(static_cast<std::int64_t>(copy.sizes.size()) * kFlagCount + flags);
    out_.Add(box.parameter - previous.parameter);
    out_.Add(box.place - previous.place);
    if ((flags & kNewDtypes) != 0) {
        out_.Add(box.source_dtype);
        out_.Add(box.parameter_dtype);
    }
    if ((flags & kNewItem) != 0) {
        out_.Add(copy.item);
    }
    out_.Add(minus(copy.src_offset, box.place == previous.place ? source_end(before) : 0));
    out_.Add(minus(copy.dst_offset, box.parameter == previous.parameter ? destination_end(before) : 0));
    if ((flags & kNewSizes) != 0) {
        for (const std::int64_t size : copy.sizes) {
            out_.Add(size);
        }
    }
    if ((flags & kNewStrides) != 0) {
        for (std::size_t d = 0; d < copy.sizes.size(); ++d) {
            out_.Add(copy.src_strides[d]);
            out_.Add(copy.dst_strides[d]);
        }
    }
    previous = box;
}

bool BoxReader::take(std::int64_t& value) {
    if (next_ >= in_.size()) {
        return false;
    }
    value = in_.Get(next_++);
    return true;
}

std::optional<CodedBox> BoxReader::read(CodedBox& previous) {
    CodedBox box = previous;
    const StridedCopy& before = previous.copy;
    std::int64_t head = 0;
    std::int64_t parameter = 0;
    std::int64_t place = 0;
    if (!take(head) || head < 0 || head / kFlagCount > kMostDims || !take(parameter) || !take(place)) {
        return std::nullopt;
    }
    box.parameter = plus(previous.parameter, parameter);
    box.place = plus(previous.place, place);
    if ((head & kNewDtypes) != 0 && !(take(box.source_dtype) && take(box.parameter_dtype))) {
        return std::nullopt;
    }
    if ((head & kNewItem) != 0 && !take(box.copy.item)) {
        return std::nullopt;
    }
    std::int64_t src = 0;
    std::int64_t dst = 0;
    if (!take(src) || !take(dst)) {
        return std::nullopt;
    }
    box.copy.src_offset = plus(src, place == 0 ? source_end(before) : 0);
    box.copy.dst_offset = plus(dst, parameter == 0 ? destination_end(before) : 0);
    const auto dims = static_cast<std::size_t>(head / kFlagCount);
    if (dims != before.sizes.size() && (head & (kNewSizes | kNewStrides)) != (kNewSizes | kNewStrides)) {
        return std::nullopt;
    }
    if ((head & kNewSizes) != 0) {
        box.copy.sizes.clear();
        for (std::size_t d = 0; d < dims; ++d) {
            std::int64_t size = 0;
            if (!take(size)) {
                return std::nullopt;
            }
            box.copy.sizes.push_back(size);
        }
    }
    if ((head & kNewStrides) != 0) {
        box.copy.src_strides.clear();
        box.copy.dst_strides.clear();
        for (std::size_t d = 0; d < dims; ++d) {
            if (!take(src) || !take(dst)) {
                return std::nullopt;
            }
            box.copy.src_strides.push_back(src);
            box.copy.dst_strides.push_back(dst);
        }
    }
    previous = box;
    return box;
}

std::optional<std::int64_t> side_extent(std::int64_t offset, std::int64_t item, const Dims& sizes,
                                        const Dims& strides) {
    if (offset < 0 || item <= 0) {
        return std::nullopt;
    }
    std::int64_t end = offset;
    bool empty = false;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        if (sizes[d] < 0 || strides[d] < 0) {
            return std::nullopt;
        }
        if (sizes[d] == 0) {
            empty = true;
            continue;
        }
        const auto reach = checked_mul(sizes[d] - 1, strides[d]);
        const auto sum = reach ? checked_add(end, *reach) : std::nullopt;
        if (!sum) {
            return std::nullopt;
        }
        end = *sum;
    }
    return empty ? 0 : checked_add(end, item);
}

}  // namespace sluice

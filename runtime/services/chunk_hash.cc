#include "runtime/base/mix64.h"
#include "runtime/services/copy_engine.h"
#include "runtime/services/copy_kernels.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace sluice {
namespace {

// Shorter runs are gathered first: an update has a fixed cost, and segments that lie together need no copy.
constexpr std::int64_t kDirectRun = 4 * static_cast<std::int64_t>(kChunkHashSegment);
constexpr std::size_t kGatherBytes = 8 * kChunkHashSegment;

std::uint64_t keyed_hash(const std::byte* segment, std::uint64_t index) {
    return mix64(XXH3_64bits(segment, kChunkHashSegment) + index * kGoldenStep);
}

// One side of a copy, with what lies gapless on that side merged. The order of the walk stays.
struct Side {
    std::int64_t offset;
    std::int64_t item;
    Dims sizes;
    Dims strides;
};

Side one_side(const StridedCopy& copy, std::int64_t offset, const Dims& strides) {
    Side side{offset, copy.item, {}, {}};
    for (std::size_t d = 0; d < copy.sizes.size(); ++d) {
        if (copy.sizes[d] == 1) {
            continue;
        }
        if (!side.sizes.empty() && side.strides.back() == copy.sizes[d] * strides[d]) {
            side.sizes.back() *= copy.sizes[d];
            side.strides.back() = strides[d];
        } else {
            side.sizes.push_back(copy.sizes[d]);
            side.strides.push_back(strides[d]);
        }
    }
    if (!side.sizes.empty() && side.strides.back() == side.item) {
        side.item *= side.sizes.back();
        side.sizes.pop_back();
        side.strides.pop_back();
    }
    return side;
}

void update_side(ChunkHash& hash, Side side, const std::byte* base) {
    std::int64_t count = 1;
    std::int64_t stride = 0;
    if (!side.sizes.empty()) {
        count = side.sizes.back();
        stride = side.strides.back();
        side.sizes.pop_back();
        side.strides.pop_back();
    }
    const bool direct = side.item >= kDirectRun;
    alignas(64) std::byte gathered[kGatherBytes];
    kernels::Box box;
    box.item = static_cast<std::size_t>(side.item);
    box.src_column = stride;
    box.dst_column = side.item;
    const kernels::CopyBox gather = kernels::copy_box_for(box.item);
    const auto batch = static_cast<std::int64_t>(kGatherBytes) / side.item;

    const StridedCopy outer{side.offset, 0, 1, side.sizes, side.strides, Dims(side.sizes.size(), 0)};
    for_each_item(outer, [&](std::int64_t offset, std::int64_t) {
        if (direct) {
            for (std::int64_t i = 0; i < count; ++i) {
                hash.update(base + offset + i * stride, box.item);
            }
            return;
        }
        for (std::int64_t i = 0; i < count; i += batch) {
            box.columns = std::min(batch, count - i);
            gather(box, base + offset + i * stride, gathered);
            hash.update(gathered, static_cast<std::size_t>(box.columns) * box.item);
        }
    });
}

}  // namespace

void ChunkHash::update(const std::byte* data, std::size_t size) {
    if (size == 0) {
        return;
    }
    if (const std::size_t begun = pending(); begun != 0) {
        const std::size_t part = std::min(size, kChunkHashSegment - begun);
        std::memcpy(segment_ + begun, data, part);
        bytes_ += part;
        data += part;
        size -= part;
        if (pending() == 0) {
            sum_ += keyed_hash(segment_, bytes_ / kChunkHashSegment - 1);
        }
    }
    for (; size >= kChunkHashSegment; size -= kChunkHashSegment, data += kChunkHashSegment) {
        sum_ += keyed_hash(data, bytes_ / kChunkHashSegment);
        bytes_ += kChunkHashSegment;
    }
    if (size > 0) {
        std::memcpy(segment_, data, size);
        bytes_ += size;
    }
}

void ChunkHash::update_source(const StridedCopy& copy, const std::byte* src) {
    if (copy.bytes() != 0) {
        update_side(*this, one_side(copy, copy.src_offset, copy.src_strides), src);
    }
}

void ChunkHash::update_destination(const StridedCopy& copy, const std::byte* dst) {
    if (copy.bytes() != 0) {
        update_side(*this, one_side(copy, copy.dst_offset, copy.dst_strides), dst);
    }
}

std::uint64_t ChunkHash::digest() const {
    std::uint64_t sum = sum_;
    if (const std::size_t begun = pending(); begun != 0) {
        alignas(64) std::byte filled[kChunkHashSegment] = {};
        std::memcpy(filled, segment_, begun);
        sum += keyed_hash(filled, bytes_ / kChunkHashSegment);
    }
    return sum + bytes_;
}

}  // namespace sluice

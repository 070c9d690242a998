#include "runtime/exchange/read_cursor.h"

#include <algorithm>
#include <cassert>

namespace sluice {

void ReadCursor::enter_step() {
    while (at_ < steps_.size()) {
        const StridedCopy& copy = steps_[at_].copy;
        if (copy.bytes() > 0) {
            index_.assign(copy.sizes.size(), 0);
            src_ = copy.src_offset;
            dst_ = copy.dst_offset;
            within_item_ = 0;
            return;
        }
        ++at_;
    }
}

void ReadCursor::advance_item() {
    const StridedCopy& copy = steps_[at_].copy;
    within_item_ = 0;
    for (std::size_t d = copy.sizes.size(); d-- > 0;) {
        src_ += copy.src_strides[d];
        dst_ += copy.dst_strides[d];
        if (++index_[d] < copy.sizes[d]) {
            return;
        }
        src_ -= copy.src_strides[d] * copy.sizes[d];
        dst_ -= copy.dst_strides[d] * copy.sizes[d];
        index_[d] = 0;
    }
    ++at_;
    enter_step();
}

ReadCursor::Get ReadCursor::next(std::int64_t max_bytes) {
    assert(!done() && max_bytes > 0);
    Get get;
    get.step = &steps_[at_];
    get.src_offset = src_ + within_item_;
    get.dst_offset = dst_ + within_item_;
    while (!done()) {
        const ReadStep& step = steps_[at_];
        const bool continues = step.segment == get.step->segment && step.parameter == get.step->parameter &&
                               src_ + within_item_ == get.src_offset + get.bytes &&
                               dst_ + within_item_ == get.dst_offset + get.bytes;
        const std::int64_t room = max_bytes - get.bytes;
        if (!continues || room == 0) {
            break;
        }
        const std::int64_t take = std::min(room, step.copy.item - within_item_);
        get.bytes += take;
        within_item_ += take;
        if (within_item_ == step.copy.item) {
            advance_item();
        }
    }
    return get;
}

}  // namespace sluice

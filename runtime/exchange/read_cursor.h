#pragma once

#include "planner/ids.h"
#include "runtime/base/strided_copy.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

/// One strided read of an owner's memory: source offsets within a region of the owner, destination offsets within a
/// parameter or the chunk's staging. Items are runs that are contiguous on both sides.
struct ReadStep {
    SegmentId segment = 0;
    ParameterId parameter = kToStaging;
    StridedCopy copy;

    static constexpr ParameterId kToStaging = -1;
};

/// Walks read steps get by get, resumably, so that a chunk of thousands of runs can be posted as the window allows.
/// Neighbouring items that continue each other on both sides become one get; none is longer than the limit.
class ReadCursor {
public:
    struct Get {
        const ReadStep* step = nullptr;
        std::int64_t src_offset = 0;
        std::int64_t dst_offset = 0;
        std::int64_t bytes = 0;
    };

    ReadCursor() = default;
    explicit ReadCursor(std::span<const ReadStep> steps) : steps_(steps) { enter_step(); }

    [[nodiscard]] bool done() const { return at_ == steps_.size(); }
    /// The next get, of at most `max_bytes`. Not when done().
    Get next(std::int64_t max_bytes);

private:
    void enter_step();
    void advance_item();

    std::span<const ReadStep> steps_;
    std::size_t at_ = 0;
    Dims index_;
    std::int64_t src_ = 0;  // of the current item
    std::int64_t dst_ = 0;
    std::int64_t within_item_ = 0;
};

}  // namespace sluice

#pragma once

#include "planner/plan.h"
#include "runtime/base/strided_copy.h"

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <optional>

namespace sluice {

/// What the streams of the plan encoding carry per entry: a strided box with what it belongs to. `place` is a tensor or a segment.
struct CodedBox {
    std::int64_t parameter = 0;
    std::int64_t place = 0;
    std::int64_t source_dtype = 0;
    std::int64_t parameter_dtype = 0;
    StridedCopy copy;
};

using NumberStream = google::protobuf::RepeatedField<std::int64_t>;

/// Writes boxes as differences to a predecessor, so that a run cut into chunks costs a few bytes per chunk: offsets are
/// expected where the predecessor ended, everything else to be equal to it.
class BoxWriter {
public:
    explicit BoxWriter(NumberStream& out) : out_(out) {}
    /// Codes `box` against `previous` and makes it the new previous.
    void write(const CodedBox& box, CodedBox& previous);

private:
    NumberStream& out_;
};

/// Reads what BoxWriter wrote. Arithmetic wraps; callers check the ranges of what they get.
class BoxReader {
public:
    explicit BoxReader(const NumberStream& in) : in_(in) {}
    /// Nothing when the numbers run out or a box has an impossible number of dimensions.
    std::optional<CodedBox> read(CodedBox& previous);
    [[nodiscard]] bool done() const { return next_ == in_.size(); }

private:
    bool take(std::int64_t& value);
    const NumberStream& in_;
    int next_ = 0;
};

/// Dimensions that a decoded box may have.
inline constexpr std::int64_t kMostDims = 32;

/// Bytes from offset 0 that one side of a copy touches; nothing when a size or stride is negative or the sum leaves 64 bits.
/// `item` is the item's size on that side. 0 for an empty copy.
std::optional<std::int64_t> side_extent(std::int64_t offset, std::int64_t item, const Dims& sizes, const Dims& strides);

}  // namespace sluice

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

/// The bytes offset + sum(j[d] * strides[d]) + [0, run) for all j within the sizes: one side of a strided copy.
struct ByteBox {
    struct Line {
        std::int64_t size;
        std::int64_t stride;
    };
    std::int64_t offset = 0;
    std::int64_t run = 0;
    std::vector<Line> lines;  ///< By falling stride; each stride exceeds what the later lines and the run span.
};

/// Sorts the dimensions, drops those that do not move (size 1, stride 0), and merges what is gapless.
ByteBox make_byte_box(std::int64_t offset, std::int64_t item, std::span<const std::int64_t> sizes,
                      std::span<const std::int64_t> strides);

/// Exact counts over a range of `length` bytes into which boxes are laid.
struct BoxUnion {
    std::int64_t covered = 0;         ///< Bytes in at least one box.
    std::int64_t overlapped = 0;      ///< Bytes in more than one.
    std::int64_t first_hole = -1;     ///< The lowest byte in no box, or -1.
    std::int64_t first_overlap = -1;  ///< The lowest byte in more than one, or -1.
};

/// `boxes` lie within [0, length). Contiguous boxes are sorted and swept; strided ones are cut into rows of the largest
/// stride, and each stretch of rows in which the same boxes are active is looked at once.
BoxUnion unite(std::vector<ByteBox> boxes, std::int64_t length);

}  // namespace sluice

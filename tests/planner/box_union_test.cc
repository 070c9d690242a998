#include "planner/box_union.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace sluice::test {
namespace {

// Counts byte by byte.
BoxUnion counted(const std::vector<ByteBox>& boxes, std::int64_t length) {
    std::vector<int> times(static_cast<std::size_t>(length), 0);
    for (const ByteBox& box : boxes) {
        std::vector<std::int64_t> starts{box.offset};
        for (const ByteBox::Line& line : box.lines) {
            std::vector<std::int64_t> more;
            for (const std::int64_t start : starts) {
                for (std::int64_t j = 0; j < line.size; ++j) {
                    more.push_back(start + j * line.stride);
                }
            }
            starts = more;
        }
        for (const std::int64_t start : starts) {
            for (std::int64_t b = 0; b < box.run; ++b) {
                ++times[static_cast<std::size_t>(start + b)];
            }
        }
    }
    BoxUnion out;
    for (std::int64_t i = 0; i < length; ++i) {
        const int n = times[static_cast<std::size_t>(i)];
        out.covered += n > 0 ? 1 : 0;
        out.overlapped += n > 1 ? 1 : 0;
        out.first_hole = n == 0 && out.first_hole < 0 ? i : out.first_hole;
        out.first_overlap = n > 1 && out.first_overlap < 0 ? i : out.first_overlap;
    }
    return out;
}

void expect_equal(const BoxUnion& a, const BoxUnion& b) {
    ASSERT_EQ(a.covered, b.covered);
    ASSERT_EQ(a.overlapped, b.overlapped);
    ASSERT_EQ(a.first_hole, b.first_hole);
    ASSERT_EQ(a.first_overlap, b.first_overlap);
}

TEST(BoxUnion, RandomBoxesAgreeWithCountingEveryByte) {
    std::mt19937_64 engine(7);
    const auto random = [&](std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(high - low + 1));
    };
    for (int round = 0; round < 4000; ++round) {
        SCOPED_TRACE(round);
        const std::int64_t length = random(1, 300);
        std::vector<ByteBox> boxes;
        for (std::int64_t n = random(0, 5); n > 0; --n) {
            // Nested strides from the inside out, as views of a tensor have them.
            std::vector<std::int64_t> sizes;
            std::vector<std::int64_t> strides;
            const std::int64_t run = random(1, 4);
            std::int64_t span = run;
            for (std::int64_t d = random(0, 3); d > 0; --d) {
                sizes.push_back(random(1, 4));
                strides.push_back(random(0, 2) == 0 ? span : span + random(0, 9));
                span += (sizes.back() - 1) * strides.back();
            }
            if (span <= length) {
                boxes.push_back(make_byte_box(random(0, length - span), run, sizes, strides));
            }
        }
        ASSERT_NO_FATAL_FAILURE(expect_equal(unite(boxes, length), counted(boxes, length)));
    }
}

TEST(BoxUnion, InterleavedColumnsOfAHugeRangeAreExactAndFast) {
    // 64 ranks write every 64th piece of 4 KiB of 1 TiB, one of them twice over half of it, and one misses its last
    // piece.
    constexpr std::int64_t kPiece = 4096;
    constexpr std::int64_t kRows = std::int64_t{1} << 22;
    std::vector<ByteBox> boxes;
    for (std::int64_t r = 0; r < 64; ++r) {
        boxes.push_back({r * kPiece, kPiece, {{r == 63 ? kRows - 1 : kRows, 64 * kPiece}}});
    }
    boxes.push_back({5 * kPiece, kPiece, {{kRows / 2, 64 * kPiece}}});
    const BoxUnion all = unite(boxes, 64 * kPiece * kRows);
    EXPECT_EQ(all.covered, 64 * kPiece * kRows - kPiece);
    EXPECT_EQ(all.first_hole, 64 * kPiece * kRows - kPiece);
    EXPECT_EQ(all.overlapped, kPiece * kRows / 2);
    EXPECT_EQ(all.first_overlap, 5 * kPiece);
}

TEST(BoxUnion, NothingIsAllHole) {
    expect_equal(unite({}, 10), {0, 0, 0, -1});
    expect_equal(unite({}, 0), {0, 0, -1, -1});
}

}  // namespace
}  // namespace sluice::test

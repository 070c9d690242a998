#include "runtime/base/strided_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace sluice {
namespace {

using Pairs = std::map<std::int64_t, std::int64_t>;  // Destination byte -> source byte.

// By the definition in the header: every index by division, nothing shared with for_each_item.
Pairs byte_pairs(const StridedCopy& copy) {
    Pairs out;
    std::int64_t items = 1;
    for (const std::int64_t size : copy.sizes) {
        items *= size;
    }
    for (std::int64_t flat = 0; flat < items; ++flat) {
        std::int64_t rest = flat;
        std::int64_t src = copy.src_offset;
        std::int64_t dst = copy.dst_offset;
        for (std::size_t d = copy.sizes.size(); d-- > 0;) {
            src += rest % copy.sizes[d] * copy.src_strides[d];
            dst += rest % copy.sizes[d] * copy.dst_strides[d];
            rest /= copy.sizes[d];
        }
        for (std::int64_t b = 0; b < copy.item; ++b) {
            EXPECT_TRUE(out.emplace(dst + b, src + b).second) << "destination bytes must be distinct";
        }
    }
    return out;
}

class RandomCopies {
public:
    explicit RandomCopies(unsigned seed) : random_(seed) {}

    std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n)); }

    StridedCopy next() {
        StridedCopy copy;
        copy.item = std::int64_t{1} << below(4);
        const auto rank = static_cast<std::size_t>(below(6));
        for (std::size_t d = 0; d < rank; ++d) {
            copy.sizes.push_back(below(12) == 0 ? 0 : 1 + below(4));
        }
        copy.src_strides = strides(copy);
        copy.dst_strides = below(3) == 0 ? copy.src_strides : strides(copy);
        for (std::size_t d = 0; d < rank; ++d) {
            if (below(8) == 0) {
                copy.src_strides[d] = 0;
            }
        }
        copy.src_offset = below(100);
        copy.dst_offset = below(2) == 0 ? below(100) : (std::int64_t{5} << 30) + below(100);
        return copy;
    }

private:
    // Strides of a box inside a larger tensor whose dimensions lie in memory in any order, with or without gaps.
    Dims strides(const StridedCopy& copy) {
        std::vector<std::size_t> order(copy.sizes.size());
        std::iota(order.begin(), order.end(), 0);
        if (below(2) == 0) {
            std::shuffle(order.begin(), order.end(), random_);
        }
        Dims out(copy.sizes.size(), 0);
        std::int64_t step = copy.item;
        for (std::size_t k = order.size(); k-- > 0;) {
            step *= below(3) == 0 ? 1 + below(3) : 1;
            out[order[k]] = step;
            step *= std::max<std::int64_t>(copy.sizes[order[k]], 1);
        }
        return out;
    }

    std::mt19937_64 random_;
};

TEST(StridedCopyTest, CoalesceKeepsTheBytes) {
    RandomCopies random(1);
    for (int i = 0; i < 5000; ++i) {
        const StridedCopy copy = random.next();
        const Pairs expected = byte_pairs(copy);
        for (const bool keep_item : {false, true}) {
            const StridedCopy canonical = coalesce(copy, keep_item);
            ASSERT_EQ(byte_pairs(canonical), expected) << i;
            EXPECT_EQ(canonical.bytes(), copy.bytes());
            EXPECT_EQ(coalesce(canonical, keep_item), canonical);
            if (keep_item) {
                EXPECT_EQ(canonical.item, copy.item);
            }
            EXPECT_TRUE(std::is_sorted(canonical.dst_strides.rbegin(), canonical.dst_strides.rend()));
            EXPECT_EQ(std::count(canonical.sizes.begin(), canonical.sizes.end(), 1), 0);
        }
    }
}

TEST(StridedCopyTest, SplittingAndPermutingDimensionsKeepsTheCanonicalForm) {
    RandomCopies random(2);
    for (int i = 0; i < 3000; ++i) {
        const StridedCopy copy = random.next();
        StridedCopy other = copy;
        // An innermost run of items becomes a dimension of bytes, a size gets a factor cut off, a 1 comes in.
        if (random.below(2) == 0 && copy.items() > 0) {
            other.sizes.push_back(copy.item);
            other.src_strides.push_back(1);
            other.dst_strides.push_back(1);
            other.item = 1;
        }
        for (std::size_t d = 0; d < other.sizes.size(); ++d) {
            if (other.sizes[d] == 4) {
                other.sizes[d] = 2;
                other.sizes.push_back(2);
                other.src_strides.push_back(other.src_strides[d]);
                other.dst_strides.push_back(other.dst_strides[d]);
                other.src_strides[d] *= 2;
                other.dst_strides[d] *= 2;
                break;
            }
        }
        other.sizes.push_back(1);
        other.src_strides.push_back(random.below(1000));
        other.dst_strides.push_back(random.below(1000));
        for (std::size_t d = other.sizes.size(); d-- > 1;) {
            const auto e = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(d) + 1));
            std::swap(other.sizes[d], other.sizes[e]);
            std::swap(other.src_strides[d], other.src_strides[e]);
            std::swap(other.dst_strides[d], other.dst_strides[e]);
        }
        ASSERT_EQ(coalesce(other), coalesce(copy)) << i;
    }
}

TEST(StridedCopyTest, KnownForms) {
    // Rows [2, 4) of a [8, 16] bf16 tensor into rows [0, 2): one run.
    const StridedCopy rows{2 * 32, 0, 2, Dims{2, 16}, Dims{32, 2}, Dims{32, 2}};
    EXPECT_EQ(coalesce(rows), (StridedCopy{64, 0, 64, Dims{}, Dims{}, Dims{}}));
    // Columns: eight runs.
    const StridedCopy columns{8, 0, 2, Dims{8, 4}, Dims{32, 2}, Dims{8, 2}};
    EXPECT_EQ(coalesce(columns), (StridedCopy{8, 0, 8, Dims{8}, Dims{32}, Dims{8}}));
    EXPECT_EQ(coalesce(columns, true), (StridedCopy{8, 0, 2, Dims{8, 4}, Dims{32, 2}, Dims{8, 2}}));
    EXPECT_FALSE(source_is_contiguous(coalesce(columns)));
    EXPECT_TRUE(destination_is_contiguous(coalesce(columns)));
    // A transpose walks the destination in order.
    const StridedCopy transposed{0, 0, 4, Dims{3, 5}, Dims{20, 4}, Dims{4, 12}};
    EXPECT_EQ(coalesce(transposed), (StridedCopy{0, 0, 4, Dims{5, 3}, Dims{4, 20}, Dims{12, 4}}));
    // One value expanded over a row.
    const StridedCopy expanded{4, 0, 4, Dims{6}, Dims{0}, Dims{4}};
    EXPECT_EQ(coalesce(expanded), expanded);
    EXPECT_FALSE(source_is_contiguous(expanded));
    EXPECT_EQ(coalesce(StridedCopy{9, 7, 4, Dims{3, 0}, Dims{8, 4}, Dims{8, 4}}),
              (StridedCopy{9, 7, 4, Dims{0}, Dims{0}, Dims{0}}));
}

TEST(StridedCopyTest, PackedFormsComposeToTheCopy) {
    RandomCopies random(3);
    for (int i = 0; i < 3000; ++i) {
        const StridedCopy copy = coalesce(random.next(), random.below(2) == 0);
        const std::int64_t at = random.below(1000);
        const StridedCopy pack = packed_from_source(copy, at);
        const StridedCopy scatter = destination_from_packed(copy, at);
        EXPECT_TRUE(destination_is_contiguous(pack));
        EXPECT_TRUE(source_is_contiguous(scatter));
        const Pairs packed = byte_pairs(pack);
        Pairs composed;
        for (const auto& [dst, middle] : byte_pairs(scatter)) {
            const auto found = packed.find(middle);
            ASSERT_NE(found, packed.end());
            composed.emplace(dst, found->second);
        }
        ASSERT_EQ(composed, byte_pairs(copy)) << i;
        if (!packed.empty()) {
            EXPECT_EQ(packed.begin()->first, at);
            EXPECT_EQ(packed.rbegin()->first, at + copy.bytes() - 1);
        }
    }
}

TEST(StridedCopyTest, PackedItemsOfAnotherSize) {
    const StridedCopy copy{0, 0, 4, Dims{3, 2}, Dims{40, 4}, Dims{80, 8}};  // f32 on the left, f64 on the right.
    const StridedCopy narrowed = packed_from_source(copy, 100, 2);
    EXPECT_EQ(narrowed.dst_strides, (Dims{4, 2}));
    EXPECT_EQ(narrowed.src_strides, copy.src_strides);
    EXPECT_EQ(narrowed.dst_offset, 100);
    EXPECT_EQ(destination_from_packed(copy, 100, 2).src_strides, (Dims{4, 2}));
    EXPECT_EQ(destination_from_packed(copy, 100).src_strides, (Dims{8, 4}));
}

TEST(StridedCopyTest, ContiguityIsThatOfTheWalk) {
    RandomCopies random(4);
    int contiguous = 0;
    for (int i = 0; i < 3000; ++i) {
        const StridedCopy copy = coalesce(random.next());
        const Pairs pairs = byte_pairs(copy);
        bool src_gapless = true;
        bool dst_gapless = true;
        std::int64_t k = 0;
        for (const auto& [dst, src] : pairs) {  // In destination order, which is the walk of a coalesced copy.
            dst_gapless = dst_gapless && dst == copy.dst_offset + k;
            src_gapless = src_gapless && src == copy.src_offset + k;
            ++k;
        }
        ASSERT_EQ(destination_is_contiguous(copy), dst_gapless) << i;
        ASSERT_EQ(source_is_contiguous(copy), src_gapless) << i;
        contiguous += src_gapless && !pairs.empty() ? 1 : 0;
    }
    EXPECT_GT(contiguous, 100);
}

TEST(StridedCopyTest, SlicesOfTheOuterDimensionMakeTheWhole) {
    RandomCopies random(5);
    int sliced = 0;
    for (int i = 0; i < 3000; ++i) {
        const StridedCopy copy = random.next();
        if (copy.sizes.empty()) {
            continue;
        }
        const std::int64_t cut = random.below(copy.sizes[0] + 1);
        Pairs joined = byte_pairs(slice_outer(copy, 0, cut));
        const std::size_t first = joined.size();
        const Pairs rest = byte_pairs(slice_outer(copy, cut, copy.sizes[0]));
        joined.insert(rest.begin(), rest.end());
        EXPECT_EQ(joined.size(), first + rest.size());
        ASSERT_EQ(joined, byte_pairs(copy)) << i;
        ++sliced;
    }
    EXPECT_GT(sliced, 1000);
}

TEST(StridedCopyTest, ForEachItemWalksRowMajor) {
    RandomCopies random(6);
    for (int i = 0; i < 3000; ++i) {
        const StridedCopy copy = random.next();
        std::vector<std::pair<std::int64_t, std::int64_t>> seen;
        for_each_item(copy, [&](std::int64_t src, std::int64_t dst) { seen.emplace_back(src, dst); });
        ASSERT_EQ(static_cast<std::int64_t>(seen.size()), copy.items());
        for (std::int64_t flat = 0; flat < copy.items(); ++flat) {
            std::int64_t rest = flat;
            std::int64_t src = copy.src_offset;
            std::int64_t dst = copy.dst_offset;
            for (std::size_t d = copy.sizes.size(); d-- > 0;) {
                src += rest % copy.sizes[d] * copy.src_strides[d];
                dst += rest % copy.sizes[d] * copy.dst_strides[d];
                rest /= copy.sizes[d];
            }
            ASSERT_EQ(seen[static_cast<std::size_t>(flat)], std::make_pair(src, dst)) << i;
        }
    }
}

TEST(StridedCopyTest, OffsetsAboveFourGibibytes) {
    const std::int64_t row = std::int64_t{3} << 31;
    const StridedCopy copy{row, std::int64_t{1} << 40, 2, Dims{3, 2}, Dims{row, 2}, Dims{std::int64_t{1} << 33, 2}};
    const StridedCopy canonical = coalesce(copy);
    EXPECT_EQ(canonical, (StridedCopy{row, std::int64_t{1} << 40, 4, Dims{3}, Dims{row}, Dims{std::int64_t{1} << 33}}));
    const Pairs pairs = byte_pairs(canonical);
    EXPECT_EQ(pairs.at((std::int64_t{1} << 40) + (std::int64_t{1} << 34) + 3), 3 * row + 3);
    std::int64_t last = 0;
    for_each_item(canonical, [&](std::int64_t src, std::int64_t) { last = src; });
    EXPECT_EQ(last, 3 * row);
    EXPECT_EQ((StridedCopy{0, 0, 8, Dims{1 << 20, 1 << 20}, Dims{8 << 20, 8}, Dims{8 << 20, 8}}).bytes(),
              std::int64_t{1} << 43);
}

}  // namespace
}  // namespace sluice

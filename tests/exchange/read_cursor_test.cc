#include "runtime/exchange/read_cursor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace sluice {
namespace {

// (segment, source byte) by (parameter, destination byte).
using ByteMap = std::map<std::pair<ParameterId, std::int64_t>, std::pair<SegmentId, std::int64_t>>;

ByteMap bytes_of(const std::vector<ReadStep>& steps) {
    ByteMap map;
    for (const ReadStep& step : steps) {
        for_each_item(step.copy, [&](std::int64_t src, std::int64_t dst) {
            for (std::int64_t b = 0; b < step.copy.item; ++b) {
                EXPECT_TRUE(map.emplace(std::pair(step.parameter, dst + b), std::pair(step.segment, src + b)).second)
                    << "the test writes a byte twice";
            }
        });
    }
    return map;
}

// Destination strides that make every byte distinct, with gaps now and then; sources wherever they like.
StridedCopy random_copy(std::mt19937_64& random, std::int64_t dst_offset) {
    StridedCopy copy;
    copy.src_offset = static_cast<std::int64_t>(random() % 100);
    copy.dst_offset = dst_offset;
    copy.item = 1 + static_cast<std::int64_t>(random() % 9);
    const std::size_t dims = random() % 4;
    copy.sizes.resize(dims);
    copy.src_strides.resize(dims);
    copy.dst_strides.resize(dims);
    std::int64_t dst = copy.item;
    std::int64_t src = copy.item;
    for (std::size_t d = dims; d-- > 0;) {
        copy.sizes[d] = random() % 12 == 0 ? 0 : 1 + static_cast<std::int64_t>(random() % 4);
        dst += random() % 3 == 0 ? static_cast<std::int64_t>(random() % 5) : 0;
        src += random() % 3 == 0 ? static_cast<std::int64_t>(random() % 5) : 0;
        copy.dst_strides[d] = dst;
        copy.src_strides[d] = random() % 10 == 0 ? 0 : src;
        dst *= std::max<std::int64_t>(copy.sizes[d], 1);
        src *= std::max<std::int64_t>(copy.sizes[d], 1);
    }
    return copy;
}

std::int64_t extent(const StridedCopy& copy) {
    std::int64_t end = copy.dst_offset + copy.item;
    for (std::size_t d = 0; d < copy.sizes.size(); ++d) {
        end += std::max<std::int64_t>(copy.sizes[d] - 1, 0) * copy.dst_strides[d];
    }
    return end;
}

TEST(ReadCursorTest, RandomStepsReadExactlyTheirBytesAtAnyLimit) {
    std::mt19937_64 random(7);
    for (int round = 0; round < 1000; ++round) {
        std::vector<ReadStep> steps;
        std::int64_t end = 0;
        for (std::uint64_t i = random() % 5; i > 0; --i) {
            steps.push_back({static_cast<SegmentId>(random() % 2), static_cast<ParameterId>(random() % 2),
                             random_copy(random, end)});
            end = extent(steps.back().copy);
        }
        const std::int64_t limit = random() % 4 == 0 ? 1 : 1 + static_cast<std::int64_t>(random() % 64);
        ByteMap expected = bytes_of(steps);
        ReadCursor cursor(steps);
        while (!cursor.done()) {
            const ReadCursor::Get get = cursor.next(limit);
            ASSERT_GT(get.bytes, 0);
            ASSERT_LE(get.bytes, limit);
            for (std::int64_t b = 0; b < get.bytes; ++b) {
                const auto at = expected.find({get.step->parameter, get.dst_offset + b});
                ASSERT_NE(at, expected.end()) << "round " << round << " writes a byte that no step writes, or twice";
                ASSERT_EQ(at->second, std::pair(get.step->segment, get.src_offset + b)) << "round " << round;
                expected.erase(at);
            }
        }
        EXPECT_TRUE(expected.empty()) << "round " << round << " left " << expected.size() << " bytes out";
    }
}

std::vector<std::int64_t> sizes_of_gets(const std::vector<ReadStep>& steps, std::int64_t limit) {
    std::vector<std::int64_t> out;
    for (ReadCursor cursor(steps); !cursor.done();) {
        out.push_back(cursor.next(limit).bytes);
    }
    return out;
}

ReadStep run(SegmentId segment, ParameterId parameter, std::int64_t src, std::int64_t dst, std::int64_t bytes) {
    StridedCopy copy;
    copy.src_offset = src;
    copy.dst_offset = dst;
    copy.item = bytes;
    return {segment, parameter, copy};
}

TEST(ReadCursorTest, NeighboursBecomeOneGet) {
    EXPECT_EQ(sizes_of_gets({run(0, 0, 10, 0, 100), run(0, 0, 110, 100, 50)}, 1000), (std::vector<std::int64_t>{150}));
    EXPECT_EQ(sizes_of_gets({run(0, 0, 10, 0, 100), run(0, 0, 110, 100, 50)}, 60),
              (std::vector<std::int64_t>{60, 60, 30}));
}

TEST(ReadCursorTest, WhatContinuesOnOneSideOnlyStaysApart) {
    EXPECT_EQ(sizes_of_gets({run(0, 0, 10, 0, 100), run(0, 0, 111, 100, 50)}, 1000),
              (std::vector<std::int64_t>{100, 50}));
    EXPECT_EQ(sizes_of_gets({run(0, 0, 10, 0, 100), run(0, 0, 110, 101, 50)}, 1000),
              (std::vector<std::int64_t>{100, 50}));
    EXPECT_EQ(sizes_of_gets({run(0, 0, 10, 0, 100), run(1, 0, 110, 100, 50)}, 1000),
              (std::vector<std::int64_t>{100, 50}));
    EXPECT_EQ(sizes_of_gets({run(0, 0, 10, 0, 100), run(0, 1, 110, 100, 50)}, 1000),
              (std::vector<std::int64_t>{100, 50}));
}

TEST(ReadCursorTest, NothingToReadIsDoneAtOnce) {
    EXPECT_TRUE(ReadCursor().done());
    std::vector<ReadStep> empty = {run(0, 0, 0, 0, 8)};
    empty[0].copy.sizes = Dims{0};
    empty[0].copy.src_strides = empty[0].copy.dst_strides = Dims{0};
    EXPECT_TRUE(ReadCursor(empty).done());
}

}  // namespace
}  // namespace sluice

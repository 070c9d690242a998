#include "runtime/exchange/compiled_chunk.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace sluice {
namespace {

Piece piece(ParameterId parameter, StridedCopy copy, DType from = DType::kBF16, DType to = DType::kBF16) {
    Piece out;
    out.parameter = parameter;
    out.source_dtype = from;
    out.parameter_dtype = to;
    out.copy = std::move(copy);
    return out;
}

StridedCopy run(std::int64_t src, std::int64_t dst, std::int64_t bytes) {
    StridedCopy copy;
    copy.src_offset = src;
    copy.dst_offset = dst;
    copy.item = bytes;
    return copy;
}

// `rows` runs of `bytes`, apart by the given strides.
StridedCopy rows(std::int64_t count, std::int64_t bytes, std::int64_t src_stride, std::int64_t dst_stride) {
    StridedCopy copy;
    copy.item = bytes;
    copy.sizes = Dims{count};
    copy.src_strides = Dims{src_stride};
    copy.dst_strides = Dims{dst_stride};
    return copy;
}

Chunk chunk_of(Path path, std::vector<Piece> pieces) {
    Chunk chunk;
    chunk.group = 3;
    chunk.owner = 1;
    chunk.path = path;
    for (const Piece& p : pieces) {
        chunk.wire_bytes += p.wire_bytes();
    }
    chunk.pieces = std::move(pieces);
    return chunk;
}

TEST(CompiledChunkTest, DirectLandsInPlaceWhenItsRunsAreWorthAGet) {
    const CompiledChunk compiled =
        compile_chunk(chunk_of(Path::kDirect, {piece(4, rows(8, 32 << 10, 64 << 10, 48 << 10))}), 2, false);
    EXPECT_EQ(compiled.landing, Landing::kInPlace);
    EXPECT_EQ(compiled.owner, 2);
    EXPECT_EQ(compiled.group, 3);
    ASSERT_EQ(compiled.reads.size(), 1u);
    EXPECT_EQ(compiled.reads[0].parameter, 4);
}

TEST(CompiledChunkTest, DirectLandsInPlaceWhenStagingWouldNotMakeRunsLonger) {
    const CompiledChunk compiled = compile_chunk(chunk_of(Path::kDirect, {piece(4, rows(8, 64, 128, 96))}), 0, false);
    EXPECT_EQ(compiled.landing, Landing::kInPlace);
}

TEST(CompiledChunkTest, DirectScattersWhenOnlyTheSourceHasLongRuns) {
    const CompiledChunk compiled =
        compile_chunk(chunk_of(Path::kDirect, {piece(4, rows(1000, 64, 64, 128))}), 0, false);
    EXPECT_EQ(compiled.landing, Landing::kScatter);
    ASSERT_EQ(compiled.reads.size(), 1u);
    EXPECT_EQ(compiled.reads[0].parameter, ReadStep::kToStaging);
    EXPECT_EQ(compiled.reads[0].copy.item, 64'000) << "one run";
}

// One short piece beside it (a norm of 64 bytes) says nothing about the 256 gets that the other would take in place.
TEST(CompiledChunkTest, AShortPieceDoesNotBringTheOthersInPlace) {
    const CompiledChunk compiled = compile_chunk(
        chunk_of(Path::kDirect, {piece(4, rows(256, 128, 128, 256)), piece(5, run(1 << 20, 0, 64))}), 0, false);
    EXPECT_EQ(compiled.landing, Landing::kScatter);
    EXPECT_EQ(compiled.reads.size(), 2u);
}

// Ten pieces that are one run at the owner and go to two parameters in turn.
TEST(CompiledChunkTest, PiecesThatLieSideBySideAtTheOwnerCountAsOneGet) {
    constexpr std::int64_t kPiece = 64 << 10;
    std::vector<Piece> pieces;
    for (int i = 0; i < 10; ++i) {
        pieces.push_back(piece(i % 2, run(kPiece * i, kPiece * (i / 2), kPiece)));
    }
    const Chunk chunk = chunk_of(Path::kDirect, pieces);
    // Nine gets fewer.
    EXPECT_EQ(compile_chunk(chunk, 0, false, {chunk.wire_bytes / 9, true}).landing, Landing::kInPlace);
    const CompiledChunk compiled = compile_chunk(chunk, 0, false, {chunk.wire_bytes / 9 + 1, true});
    EXPECT_EQ(compiled.landing, Landing::kScatter);
    ReadCursor cursor(compiled.reads);
    EXPECT_EQ(cursor.next(1 << 30).bytes, chunk.wire_bytes);
    EXPECT_TRUE(cursor.done());

    pieces[4].copy.src_offset +=
        64;  // a gap before it, and it reaches into the next: neither goes on from what is before
    EXPECT_EQ(compile_chunk(chunk_of(Path::kDirect, pieces), 0, false, {chunk.wire_bytes / 7, true}).landing,
              Landing::kInPlace);
}

TEST(CompiledChunkTest, DirectScattersWhatItConverts) {
    StridedCopy copy = rows(1 << 14, 2, 2, 4);
    const CompiledChunk compiled =
        compile_chunk(chunk_of(Path::kDirect, {piece(0, copy, DType::kBF16, DType::kF32)}), 0, false);
    EXPECT_EQ(compiled.landing, Landing::kScatter);
    EXPECT_EQ(compiled.wire_bytes, 2 << 14);
}

TEST(CompiledChunkTest, PackedIsOneReadInPlaceWhenItsDestinationIsGapless) {
    const CompiledChunk compiled = compile_chunk(
        chunk_of(Path::kPacked, {piece(5, rows(10, 64, 256, 64)), piece(5, run(9000, 640, 100))}), 0, false);
    EXPECT_EQ(compiled.landing, Landing::kInPlace);
    ASSERT_EQ(compiled.reads.size(), 1u);
    EXPECT_EQ(compiled.reads[0].parameter, 5);
    EXPECT_EQ(compiled.reads[0].copy, run(0, 0, 740));
}

TEST(CompiledChunkTest, PackedLandsInPlaceRangeByRangeWhenRangesAreWorthAGet) {
    const std::int64_t norm = 8 << 10;
    const std::int64_t rest = (256 << 10) - norm;
    const CompiledChunk compiled = compile_chunk(
        chunk_of(Path::kPacked, {piece(4, run(0, 0, norm)), piece(5, rows(rest / 64, 64, 256, 64))}), 0, false);
    EXPECT_EQ(compiled.landing, Landing::kInPlace);
    ASSERT_EQ(compiled.reads.size(), 2u);
    EXPECT_EQ(compiled.reads[0].parameter, 4);
    EXPECT_EQ(compiled.reads[0].copy, run(0, 0, norm));
    EXPECT_EQ(compiled.reads[1].parameter, 5);
    EXPECT_EQ(compiled.reads[1].copy, run(norm, 0, rest));
}

TEST(CompiledChunkTest, PackedScattersOtherwise) {
    const auto expect_scatter = [](std::vector<Piece> pieces) {
        const Chunk chunk = chunk_of(Path::kPacked, std::move(pieces));
        const CompiledChunk compiled = compile_chunk(chunk, 0, false);
        EXPECT_EQ(compiled.landing, Landing::kScatter);
        ASSERT_EQ(compiled.reads.size(), 1u);
        EXPECT_EQ(compiled.reads[0].parameter, ReadStep::kToStaging);
        EXPECT_EQ(compiled.reads[0].copy, run(0, 0, chunk.wire_bytes));
    };
    expect_scatter({piece(5, rows(10, 64, 256, 128))});                         // gaps
    expect_scatter({piece(5, run(0, 0, 100)), piece(6, run(100, 100, 100))});   // two parameters
    expect_scatter({piece(5, run(0, 100, 100)), piece(5, run(100, 0, 100))});   // out of order
    expect_scatter({piece(0, rows(100, 4, 4, 2), DType::kF32, DType::kBF16)});  // narrowed on the way
    expect_scatter({piece(0, rows(100, 2, 2, 4), DType::kBF16, DType::kF32)});  // widened here
}

TEST(CompiledChunkTest, WhatIsOursIsCopied) {
    for (const Path path : {Path::kMapped, Path::kDirect}) {
        const CompiledChunk compiled = compile_chunk(chunk_of(path, {piece(0, run(0, 0, 1 << 20))}), 0, true);
        EXPECT_EQ(compiled.landing, Landing::kLocalCopy);
        EXPECT_TRUE(compiled.reads.empty());
    }
}

// Whatever the landing, the reads fetch exactly the source bytes of the pieces (in wire order out of a slot, when packed), each to its
// place in parameter or wire order.
void expect_exact_reads(Path path, std::int64_t bytes_worth_a_get) {
    std::mt19937_64 random(11);
    int in_place = 0;
    int scattered = 0;
    for (int round = 0; round < 500; ++round) {
        std::vector<Piece> pieces;
        std::int64_t dst = 0;
        for (std::uint64_t i = 1 + random() % 3; i > 0; --i) {
            const auto count = 1 + static_cast<std::int64_t>(random() % 6);
            const auto bytes = static_cast<std::int64_t>(2 * (1 + random() % 8));
            StridedCopy copy = rows(count, bytes, bytes + static_cast<std::int64_t>(random() % 2 * 6),
                                    bytes + static_cast<std::int64_t>(random() % 2 * 4));
            copy.src_offset = static_cast<std::int64_t>(random() % 1000);
            copy.dst_offset = dst;
            dst += count * copy.dst_strides[0];
            pieces.push_back(piece(static_cast<ParameterId>(random() % 2), coalesce(copy)));
            pieces.back().segment = static_cast<SegmentId>(random() % 2);
        }
        const Chunk chunk = chunk_of(path, pieces);
        const CompiledChunk compiled = compile_chunk(
            chunk, 0, false, {.bytes_worth_a_get = bytes_worth_a_get, .bytes_worth_a_get_of_slot = bytes_worth_a_get});
        ++(compiled.landing == Landing::kInPlace ? in_place : scattered);

        std::map<std::pair<ParameterId, std::int64_t>, std::pair<SegmentId, std::int64_t>> expected;
        std::int64_t wire = 0;
        for (const Piece& p : chunk.pieces) {
            for_each_item(p.copy, [&](std::int64_t src, std::int64_t to) {
                for (std::int64_t b = 0; b < p.copy.item; ++b, ++wire) {
                    const auto place = compiled.landing == Landing::kInPlace ? std::pair(p.parameter, to + b)
                                                                             : std::pair(ReadStep::kToStaging, wire);
                    expected[place] =
                        path == Path::kPacked ? std::pair(SegmentId{0}, wire) : std::pair(p.segment, src + b);
                }
            });
        }
        ASSERT_EQ(wire, chunk.wire_bytes);
        for (ReadCursor cursor(compiled.reads); !cursor.done();) {
            const ReadCursor::Get get = cursor.next(7);
            for (std::int64_t b = 0; b < get.bytes; ++b) {
                const auto at = expected.find({get.step->parameter, get.dst_offset + b});
                ASSERT_NE(at, expected.end()) << "round " << round;
                ASSERT_EQ(at->second, std::pair(get.step->segment, get.src_offset + b)) << "round " << round;
                expected.erase(at);
            }
        }
        EXPECT_TRUE(expected.empty()) << "round " << round;
    }
    EXPECT_GT(in_place, 50);
    EXPECT_GT(scattered, 50);
}

TEST(CompiledChunkTest, ReadsOfRandomDirectChunksCoverExactlyTheirPieces) {
    expect_exact_reads(Path::kDirect, LandingRules().bytes_worth_a_get);
}

TEST(CompiledChunkTest, ReadsOfRandomPackedChunksCoverExactlyTheirPieces) { expect_exact_reads(Path::kPacked, 16); }

}  // namespace
}  // namespace sluice

#include "runtime/exchange/compiled_chunk.h"

#include <algorithm>
#include <optional>

namespace sluice {
namespace {

bool any_conversion(const std::vector<Piece>& pieces) {
    return std::any_of(pieces.begin(), pieces.end(), [](const Piece& p) { return p.converts(); });
}

std::int64_t gets_of(const std::vector<ReadStep>& steps) {
    std::int64_t gets = 0;
    for (const ReadStep& step : steps) {
        gets += step.copy.items();
    }
    return gets;
}

std::vector<ReadStep> reads_in_place(const Chunk& chunk) {
    std::vector<ReadStep> reads;
    for (const Piece& piece : chunk.pieces) {
        reads.push_back({piece.segment, piece.parameter, piece.copy});
    }
    return reads;
}

// The owner's bytes in wire order, without gaps.
std::vector<ReadStep> reads_to_staging(const Chunk& chunk) {
    std::vector<ReadStep> reads;
    std::int64_t offset = 0;
    for (const Piece& piece : chunk.pieces) {
        reads.push_back({piece.segment, ReadStep::kToStaging, coalesce(packed_from_source(piece.copy, offset))});
        offset += piece.copy.bytes();
    }
    return reads;
}

// The one gapless range of one parameter that the chunk fills in wire order, when it is so.
std::optional<ReadStep> single_destination(const Chunk& chunk) {
    const Piece& first = chunk.pieces.front();
    std::int64_t end = first.copy.dst_offset;
    for (const Piece& piece : chunk.pieces) {
        if (piece.parameter != first.parameter || piece.copy.dst_offset != end ||
            !destination_is_contiguous(piece.copy)) {
            return std::nullopt;
        }
        end += piece.copy.bytes();
    }
    StridedCopy range;
    range.dst_offset = first.copy.dst_offset;
    range.item = chunk.wire_bytes;
    return ReadStep{0, first.parameter, range};
}

}  // namespace

CompiledChunk compile_chunk(const Chunk& chunk, int owner_index, bool owner_is_self, const LandingRules& rules) {
    CompiledChunk out;
    out.group = chunk.group;
    out.owner = owner_index;
    out.path = chunk.path;
    out.wire_bytes = chunk.wire_bytes;
    out.pieces = chunk.pieces;
    if (owner_is_self || chunk.path == Path::kMapped) {
        out.landing = Landing::kLocalCopy;
        return out;
    }
    const bool converts = any_conversion(chunk.pieces);
    if (chunk.path == Path::kPacked) {
        const auto destination = converts || !rules.in_place ? std::nullopt : single_destination(chunk);
        StridedCopy whole;
        whole.item = chunk.wire_bytes;
        out.landing = destination ? Landing::kInPlace : Landing::kScatter;
        out.reads = {destination ? *destination : ReadStep{0, ReadStep::kToStaging, whole}};
        return out;
    }
    out.reads = reads_to_staging(chunk);
    out.landing = Landing::kScatter;
    if (!converts && rules.in_place) {
        std::vector<ReadStep> in_place = reads_in_place(chunk);
        if ((gets_of(in_place) - gets_of(out.reads)) * rules.bytes_worth_a_get <= chunk.wire_bytes) {
            out.reads = std::move(in_place);
            out.landing = Landing::kInPlace;
        }
    }
    return out;
}

std::int64_t wire_item_bytes(const Piece& piece) {
    return piece.converts() ? size_of(piece.wire_dtype()) : piece.copy.item;
}

}  // namespace sluice

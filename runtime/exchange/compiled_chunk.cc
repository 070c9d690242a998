#include "runtime/exchange/compiled_chunk.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace sluice {
namespace {

bool any_conversion(const std::vector<Piece>& pieces) {
    return std::any_of(pieces.begin(), pieces.end(), [](const Piece& p) { return p.converts(); });
}

// Whether the last item of one step and the first of the next become one get (see ReadCursor). Within a step none do: it is coalesced.
bool continues(const ReadStep& step, const ReadStep& next) {
    const StridedCopy& copy = step.copy;
    std::int64_t src = copy.src_offset + copy.item;
    std::int64_t dst = copy.dst_offset + copy.item;
    for (std::size_t d = 0; d < copy.sizes.size(); ++d) {
        src += (copy.sizes[d] - 1) * copy.src_strides[d];
        dst += (copy.sizes[d] - 1) * copy.dst_strides[d];
    }
    return step.segment == next.segment && step.parameter == next.parameter && next.copy.src_offset == src &&
           next.copy.dst_offset == dst;
}

std::int64_t gets_of(const std::vector<ReadStep>& steps) {
    std::int64_t gets = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        gets += steps[i].copy.items() - (i > 0 && continues(steps[i - 1], steps[i]) ? 1 : 0);
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

// A packed chunk lies in the owner's slot in wire order.
std::vector<ReadStep> reads_of_slot(const Chunk& chunk) {
    std::vector<ReadStep> reads;
    std::int64_t offset = 0;
    for (const Piece& piece : chunk.pieces) {
        ReadStep step{0, piece.parameter, coalesce(destination_from_packed(piece.copy, offset))};
        offset += piece.copy.bytes();
        if (!reads.empty() && reads.back().copy.sizes.empty() && step.copy.sizes.empty() &&
            continues(reads.back(), step)) {
            reads.back().copy.item += step.copy.item;
        } else {
            reads.push_back(std::move(step));
        }
    }
    return reads;
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
    const bool packed = chunk.path == Path::kPacked;
    if (packed) {
        StridedCopy whole;
        whole.item = chunk.wire_bytes;
        out.reads = {{0, ReadStep::kToStaging, whole}};
    } else {
        out.reads = reads_to_staging(chunk);
    }
    out.landing = Landing::kScatter;
    if (!any_conversion(chunk.pieces) && rules.in_place) {
        std::vector<ReadStep> in_place = packed ? reads_of_slot(chunk) : reads_in_place(chunk);
        const std::int64_t worth_a_get = packed ? rules.bytes_worth_a_get_of_slot : rules.bytes_worth_a_get;
        if ((gets_of(in_place) - gets_of(out.reads)) * worth_a_get <= chunk.wire_bytes) {
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

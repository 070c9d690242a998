#pragma once

#include "planner/plan.h"
#include "runtime/exchange/read_cursor.h"

#include <cstdint>
#include <vector>

namespace sluice {

/// How a chunk's bytes land in the worker.
enum class Landing : std::uint8_t {
    kInPlace,    ///< Gets write the parameters themselves.
    kScatter,    ///< Gets fill staging; a copy then writes the parameters (and converts, where the dtypes differ).
    kLocalCopy,  ///< The owner's memory is in our address space (mapped, or our own): one strided copy from it.
};

/// A chunk as the pull engine uses it: made once from the route, read in every sync.
struct CompiledChunk {
    GroupId group = 0;
    int owner = 0;  ///< Index among the owners of the route.
    Path path = Path::kDirect;
    Landing landing = Landing::kInPlace;
    std::int64_t wire_bytes = 0;
    std::vector<ReadStep> reads;  ///< Empty for kLocalCopy.
    std::vector<Piece> pieces;    ///< In wire order.
};

/// What decides where a chunk lands.
struct LandingRules {
    /// A get costs some microseconds of CPU whatever its size (2 us over CMA, more on slower links): as much as to copy this many
    /// bytes out of staging.
    std::int64_t bytes_worth_a_get = 16 << 10;
    /// The same for a packed chunk. More, since it may come over an emulated link, where a get takes tens of microseconds of both
    /// transport threads, while copy threads have time.
    std::int64_t bytes_worth_a_get_of_slot = 256 << 10;
    /// Gets may write parameters.
    bool in_place = true;
};

/// Chooses the landing and computes the reads. A chunk lands in place unless that takes so many more gets (of runs that are
/// contiguous on both sides) than reading what the owner has into staging that copying the chunk from there is cheaper. To staging, a
/// packed chunk is one read.
CompiledChunk compile_chunk(const Chunk& chunk, int owner_index, bool owner_is_self, const LandingRules& rules = {});

/// Bytes of `piece` in wire form.
std::int64_t wire_item_bytes(const Piece& piece);

}  // namespace sluice

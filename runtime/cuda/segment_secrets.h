#pragma once

#include <array>
#include <cstdint>

namespace sluice {

/// XXH3's secret as a kernel wants it that hashes segments of 1 KiB, 16 bytes per lane: two words for each of the 64 pieces of a
/// segment, in order, then the two of each of the four pairs of accumulators that are merged at the end.
inline constexpr int kSegmentPieces = 64;
std::array<std::uint64_t, 2 * kSegmentPieces + 8> segment_secrets();

}  // namespace sluice

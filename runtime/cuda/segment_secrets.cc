#include "runtime/cuda/segment_secrets.h"

#include <xxhash.h>

#include <cstring>

namespace sluice {

std::array<std::uint64_t, 2 * kSegmentPieces + 8> segment_secrets() {
    // The library's own secret, which its implementation shows (XXH_INLINE_ALL). As XXH3 reads its default secret for 1024 bytes: 15 stripes of 64 bytes, one step of 8 apart, then the last stripe.
    constexpr int kStripes = 16;
    constexpr std::size_t kLastStripe = XXH_SECRET_DEFAULT_SIZE - 64 - 7;
    constexpr std::size_t kMerge = 11;
    std::array<std::uint64_t, 2 * kSegmentPieces + 8> out{};
    std::size_t at = 0;
    const auto put = [&](std::size_t from) { std::memcpy(&out[at++], XXH3_kSecret + from, sizeof(std::uint64_t)); };
    for (std::size_t stripe = 0; stripe < kStripes; ++stripe) {
        const std::size_t begin = stripe + 1 < kStripes ? 8 * stripe : kLastStripe;
        for (std::size_t word = 0; word < 8; ++word) {
            put(begin + 8 * word);
        }
    }
    for (std::size_t word = 0; word < 8; ++word) {
        put(kMerge + 8 * word);
    }
    return out;
}

}  // namespace sluice

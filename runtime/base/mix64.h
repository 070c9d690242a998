#pragma once

#include <cstdint>

namespace sluice {

/// 2^64 divided by the golden ratio: multiples of it are far apart.
inline constexpr std::uint64_t kGoldenStep = 0x9E3779B97F4A7C15u;

/// The finaliser of splitmix64: a bijection that spreads every input bit over all output bits.
constexpr std::uint64_t mix64(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

}  // namespace sluice

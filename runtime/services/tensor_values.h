#pragma once

#include "runtime/base/dtype.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

/// The value that every element of every tensor has in every version, so that anyone can tell whether the right bytes
/// have arrived. All arithmetic is modulo 2^64:
///   h = name_hash(name), i = flat index in the full tensor, r = mix64(h + i), mix64 = the finaliser of splitmix64
///   version 1, generated   bf16   (r & 0x807F)     | ((0x78 + (r >> 16 & 7)) << 7)
///                          f16    (r & 0x83FF)     | ((8 + (r >> 16 & 7)) << 10)
///                          f32    (r & 0x807FFFFF) | ((0x78 + (r >> 32 & 7)) << 23)
///                          f64    (r & 0x800FFFFFFFFFFFFF) | ((0x3F8 + (r >> 52 & 7)) << 52)
///                          bool   r & 1
///                          others the low bits of r
///   version v > 1          version 1 XOR (mix64(h + i + v * 0x9E3779B97F4A7C15) & mask)
///                          mask = the mantissa of a floating type, all bits of an integer, none of bool
/// Pure functions; any thread. Element data need not be aligned.
namespace sluice {

/// XXH64 of the tensor's name, seed 0. A tied tensor takes the name of the one it is tied to.
std::uint64_t name_hash(std::string_view name);

/// Writes elements [first_index, first_index + count) of a generated tensor as they are in `version` (>= 1).
void fill_generated(std::uint64_t name_hash, DType dtype, std::int64_t first_index, std::int64_t count,
                    std::int64_t version, std::byte* out);

/// Turns elements [first_index, first_index + count) from what they are in version 1, wherever that came from, into
/// `version`. Turns them back as well.
void advance_to_version(std::uint64_t name_hash, DType dtype, std::int64_t first_index, std::int64_t count,
                        std::int64_t version, std::byte* bytes);

}  // namespace sluice

#pragma once

#include "runtime/base/dtype.h"

#include <cstdint>

/// What a copy kernel reads: plain data, and the arithmetic on it, which host code can carry out too.
namespace sluice {

/// Division of numbers below 2^31 by a number that is known beforehand, as one multiplication.
struct Divider {
    std::uint32_t divisor = 1;
    std::uint32_t magic = (1u << 31) + 1;
    std::uint32_t shift = 31;

    [[nodiscard]] constexpr std::uint32_t quotient(std::uint32_t n) const {
        return static_cast<std::uint32_t>((static_cast<std::uint64_t>(n) * magic) >> shift);
    }
};

/// `divisor` in [1, 2^31]. With l = the bits of divisor - 1, 2^(31+l)/divisor rounded up is exact for every n below 2^31.
constexpr Divider make_divider(std::uint32_t divisor) {
    std::uint32_t bits = 0;
    while ((std::uint64_t{1} << bits) < divisor) {
        ++bits;
    }
    return {divisor, static_cast<std::uint32_t>((std::uint64_t{1} << (31 + bits)) / divisor + 1), 31 + bits};
}

/// What an address of a descriptor counts from. The last two are given with each run.
enum class CopyBase : std::uint8_t {
    kAddress,   ///< Nothing: it is an address.
    kWire,      ///< A serve slot or a piece of staging.
    kGathered,  ///< The owner's gather buffer.
};
inline constexpr int kCopyBases = 3;

/// How elements change on their way; the wire form is the narrower one.
enum class Conversion : std::uint8_t { kNone, kF32Bf16, kF32F16, kBf16F32, kF16F32, kOther };

/// One strided copy of a program: bytes [wire_begin, wire_begin + wire_bytes) of the wire form. They are runs of `run` bytes, one
/// for each index within `dims`, outermost first.
struct alignas(16) CopyDescriptor {
    static constexpr int kMaxRank = 4;
    struct Dim {
        Divider size;
        std::uint32_t unused = 0;
        std::int64_t source_stride = 0;
        std::int64_t target_stride = 0;
    };

    std::int64_t wire_begin = 0;
    std::uint32_t wire_bytes = 0;  ///< Below 2^31.
    std::uint8_t rank = 0;
    CopyBase source_base = CopyBase::kAddress;
    CopyBase target_base = CopyBase::kAddress;
    /// Bytes that may be moved at once: 1, 2, 4, 8 or 16. With a conversion: of the wire form, 8, or one element wherever it lies.
    std::uint8_t unit = 1;
    std::int64_t source = 0;
    std::int64_t target = 0;
    Divider run;
    Conversion conversion = Conversion::kNone;
    DType from = DType::kU8, to = DType::kU8;  ///< With a conversion.
    /// Bytes of an element, as powers of two; 0 without a conversion.
    std::uint8_t wire_shift = 0, source_shift = 0, target_shift = 0;
    std::uint16_t unused = 0;
    std::uint32_t tag = 0;  ///< The caller's, of the copy that it is part of.
    Dim dims[kMaxRank];

    [[nodiscard]] constexpr std::int64_t wire_end() const { return wire_begin + wire_bytes; }

    /// Where byte `at` of the descriptor's wire form (the first of an element) lies on both sides, from the bases.
    struct Place {
        std::int64_t source;
        std::int64_t target;
        std::uint32_t in_run;
    };
    [[nodiscard]] constexpr Place place(std::uint32_t at) const {
        std::uint32_t index = run.quotient(at);
        const std::uint32_t in_run = at - index * run.divisor;
        Place out{source, target, in_run};
        for (int d = kMaxRank - 1; d > 0; --d) {
            if (d < rank) {
                const std::uint32_t rest = dims[d].size.quotient(index);
                const std::int64_t i = index - rest * dims[d].size.divisor;
                out.source += i * dims[d].source_stride;
                out.target += i * dims[d].target_stride;
                index = rest;
            }
        }
        if (rank > 0) {
            out.source += static_cast<std::int64_t>(index) * dims[0].source_stride;
            out.target += static_cast<std::int64_t>(index) * dims[0].target_stride;
        }
        out.source += static_cast<std::int64_t>(in_run >> wire_shift) << source_shift;
        out.target += static_cast<std::int64_t>(in_run >> wire_shift) << target_shift;
        return out;
    }
};
static_assert(sizeof(CopyDescriptor) % 16 == 0, "read by 16 bytes at a time");

}  // namespace sluice

#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/mix64.h"

#include <cstdint>
#include <limits>

/// The bits of one generated element, as tensor_values.h defines them: one definition for the processor and the GPU.
namespace sluice::element {

// One per kind of element: its bits in version 1, and which of them a later version changes.
struct F64 {
    using Bits = std::uint64_t;
    static constexpr std::uint64_t kMask = 0x000FFFFFFFFFFFFFu;
    static constexpr Bits make(std::uint64_t r) {
        return (r & 0x800FFFFFFFFFFFFFu) | ((0x3F8u + (r >> 52 & 7u)) << 52);
    }
};
struct F32 {
    using Bits = std::uint32_t;
    static constexpr std::uint64_t kMask = 0x7FFFFFu;
    static constexpr Bits make(std::uint64_t r) {
        return static_cast<Bits>((r & 0x807FFFFFu) | ((0x78u + (r >> 32 & 7u)) << 23));
    }
};
struct F16 {
    using Bits = std::uint16_t;
    static constexpr std::uint64_t kMask = 0x3FFu;
    static constexpr Bits make(std::uint64_t r) {
        return static_cast<Bits>((r & 0x83FFu) | ((8u + (r >> 16 & 7u)) << 10));
    }
};
struct Bf16 {
    using Bits = std::uint16_t;
    static constexpr std::uint64_t kMask = 0x7Fu;
    static constexpr Bits make(std::uint64_t r) {
        return static_cast<Bits>((r & 0x807Fu) | ((0x78u + (r >> 16 & 7u)) << 7));
    }
};
template <class T, std::uint64_t kMaskBits = std::numeric_limits<T>::max()>
struct LowBits {
    using Bits = T;
    static constexpr std::uint64_t kMask = kMaskBits;
    static constexpr Bits make(std::uint64_t r) { return static_cast<Bits>(r); }
};
struct Bool {
    using Bits = std::uint8_t;
    static constexpr std::uint64_t kMask = 0;
    static constexpr Bits make(std::uint64_t r) { return static_cast<Bits>(r & 1u); }
};

/// What is added to the position for version `version` (>= 1); 0 for the first, which nothing is mixed into.
constexpr std::uint64_t version_step(std::int64_t version) {
    return version == 1 ? 0 : static_cast<std::uint64_t>(version) * kGoldenStep;
}

/// The element at `position` = name hash + flat index, in the version of `step`.
template <class Element>
constexpr typename Element::Bits value(std::uint64_t position, std::uint64_t step) {
    using Bits = typename Element::Bits;
    const Bits first = Element::make(mix64(position));
    return step == 0 || Element::kMask == 0
               ? first
               : static_cast<Bits>(first ^ static_cast<Bits>(mix64(position + step) & Element::kMask));
}

/// Calls `visit` with the kind of element of `dtype`.
template <class Visit>
constexpr void with_element(DType dtype, Visit&& visit) {
    switch (dtype) {
        case DType::kF64:
            return visit(F64());
        case DType::kF32:
            return visit(F32());
        case DType::kF16:
            return visit(F16());
        case DType::kBF16:
            return visit(Bf16());
        case DType::kF8E4M3:
            return visit(LowBits<std::uint8_t, 0x07>());
        case DType::kF8E5M2:
            return visit(LowBits<std::uint8_t, 0x03>());
        case DType::kI64:
        case DType::kU64:
            return visit(LowBits<std::uint64_t>());
        case DType::kI32:
        case DType::kU32:
            return visit(LowBits<std::uint32_t>());
        case DType::kI16:
        case DType::kU16:
            return visit(LowBits<std::uint16_t>());
        case DType::kI8:
        case DType::kU8:
            return visit(LowBits<std::uint8_t>());
        case DType::kBool:
            return visit(Bool());
    }
}

}  // namespace sluice::element

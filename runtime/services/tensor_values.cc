#include "runtime/services/tensor_values.h"

#include "runtime/services/cpu_features.h"

#include <xxhash.h>

#include <cassert>
#include <cstring>
#include <limits>

namespace sluice {
namespace {

constexpr std::uint64_t kVersionStep = 0x9E3779B97F4A7C15u;

constexpr std::uint64_t mix64(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// One per kind of element: its bits in version 1, and which of them a later version changes.
struct F64 {
    using Bits = std::uint64_t;
    static constexpr std::uint64_t kMask = 0x000FFFFFFFFFFFFFu;
    static Bits make(std::uint64_t r) { return (r & 0x800FFFFFFFFFFFFFu) | ((0x3F8u + (r >> 52 & 7u)) << 52); }
};
struct F32 {
    using Bits = std::uint32_t;
    static constexpr std::uint64_t kMask = 0x7FFFFFu;
    static Bits make(std::uint64_t r) {
        return static_cast<Bits>((r & 0x807FFFFFu) | ((0x78u + (r >> 32 & 7u)) << 23));
    }
};
struct F16 {
    using Bits = std::uint16_t;
    static constexpr std::uint64_t kMask = 0x3FFu;
    static Bits make(std::uint64_t r) { return static_cast<Bits>((r & 0x83FFu) | ((8u + (r >> 16 & 7u)) << 10)); }
};
struct Bf16 {
    using Bits = std::uint16_t;
    static constexpr std::uint64_t kMask = 0x7Fu;
    static Bits make(std::uint64_t r) { return static_cast<Bits>((r & 0x807Fu) | ((0x78u + (r >> 16 & 7u)) << 7)); }
};
template <class T, std::uint64_t kMaskBits = std::numeric_limits<T>::max()>
struct LowBits {
    using Bits = T;
    static constexpr std::uint64_t kMask = kMaskBits;
    static Bits make(std::uint64_t r) { return static_cast<Bits>(r); }
};
struct Bool {
    using Bits = std::uint8_t;
    static constexpr std::uint64_t kMask = 0;
    static Bits make(std::uint64_t r) { return static_cast<Bits>(r & 1u); }
};

// `start` is h + first_index; `step` is what the version adds, 0 for version 1.
template <class Element>
[[gnu::always_inline]] inline void fill(std::uint64_t start, std::uint64_t step, std::uint64_t count, std::byte* out) {
    using Bits = typename Element::Bits;
    if (step == 0 || Element::kMask == 0) {
        for (std::uint64_t k = 0; k < count; ++k) {
            const Bits bits = Element::make(mix64(start + k));
            std::memcpy(out + k * sizeof(Bits), &bits, sizeof(Bits));
        }
        return;
    }
    for (std::uint64_t k = 0; k < count; ++k) {
        const auto change = static_cast<Bits>(mix64(start + k + step) & Element::kMask);
        const auto bits = static_cast<Bits>(Element::make(mix64(start + k)) ^ change);
        std::memcpy(out + k * sizeof(Bits), &bits, sizeof(Bits));
    }
}

template <class Element>
[[gnu::always_inline]] inline void advance(std::uint64_t start, std::uint64_t step, std::uint64_t count,
                                           std::byte* bytes) {
    using Bits = typename Element::Bits;
    if (step == 0 || Element::kMask == 0) {
        return;
    }
    for (std::uint64_t k = 0; k < count; ++k) {
        Bits bits;
        std::memcpy(&bits, bytes + k * sizeof(Bits), sizeof(Bits));
        bits = static_cast<Bits>(bits ^ (mix64(start + k + step) & Element::kMask));
        std::memcpy(bytes + k * sizeof(Bits), &bits, sizeof(Bits));
    }
}

template <class Element>
SLUICE_TARGET_AVX2 void fill_avx2(std::uint64_t start, std::uint64_t step, std::uint64_t count, std::byte* out) {
    fill<Element>(start, step, count, out);
}
template <class Element>
SLUICE_TARGET_AVX2 void advance_avx2(std::uint64_t start, std::uint64_t step, std::uint64_t count, std::byte* bytes) {
    advance<Element>(start, step, count, bytes);
}

template <class Visit>
void with_element(DType dtype, Visit visit) {
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

std::uint64_t step_of(std::int64_t version) {
    assert(version >= 1);
    return version == 1 ? 0 : static_cast<std::uint64_t>(version) * kVersionStep;
}

}  // namespace

std::uint64_t name_hash(std::string_view name) { return XXH64(name.data(), name.size(), 0); }

void fill_generated(std::uint64_t name_hash, DType dtype, std::int64_t first_index, std::int64_t count,
                    std::int64_t version, std::byte* out) {
    const std::uint64_t start = name_hash + static_cast<std::uint64_t>(first_index);
    with_element(dtype, [&]<class Element>(Element) {
        const auto elements = static_cast<std::uint64_t>(count);
        has_avx2() ? fill_avx2<Element>(start, step_of(version), elements, out)
                   : fill<Element>(start, step_of(version), elements, out);
    });
}

void advance_to_version(std::uint64_t name_hash, DType dtype, std::int64_t first_index, std::int64_t count,
                        std::int64_t version, std::byte* bytes) {
    const std::uint64_t start = name_hash + static_cast<std::uint64_t>(first_index);
    with_element(dtype, [&]<class Element>(Element) {
        const auto elements = static_cast<std::uint64_t>(count);
        has_avx2() ? advance_avx2<Element>(start, step_of(version), elements, bytes)
                   : advance<Element>(start, step_of(version), elements, bytes);
    });
}

}  // namespace sluice

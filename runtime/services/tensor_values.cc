#include "runtime/services/tensor_values.h"

#include "runtime/services/cpu_features.h"
#include "runtime/services/tensor_element.h"

#include <xxhash.h>

#include <cassert>
#include <cstring>

namespace sluice {
namespace {

using element::with_element;

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

std::uint64_t step_of(std::int64_t version) {
    assert(version >= 1);
    return element::version_step(version);
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

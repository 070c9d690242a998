#include "runtime/base/float_bits.h"
#include "runtime/services/copy_engine.h"

#include <cassert>
#include <cstring>

namespace sluice {
namespace {

struct Bf16 {
    std::uint16_t bits;
};
struct F16 {
    std::uint16_t bits;
};

// Between two types; widening is exact, so going through f32 where that is wider than the source loses nothing.
double convert(float from, double*) { return from; }
double convert(Bf16 from, double*) { return f32_from_bf16(from.bits); }
double convert(F16 from, double*) { return f32_from_f16(from.bits); }
float convert(double from, float*) { return static_cast<float>(from); }
float convert(Bf16 from, float*) { return f32_from_bf16(from.bits); }
float convert(F16 from, float*) { return f32_from_f16(from.bits); }
Bf16 convert(double from, Bf16*) { return {bf16_from_f64(from)}; }
Bf16 convert(float from, Bf16*) { return {bf16_from_f32(from)}; }
Bf16 convert(F16 from, Bf16*) { return {bf16_from_f32(f32_from_f16(from.bits))}; }
F16 convert(double from, F16*) { return {f16_from_f64(from)}; }
F16 convert(float from, F16*) { return {f16_from_f32(from)}; }
F16 convert(Bf16 from, F16*) { return {f16_from_f32(f32_from_bf16(from.bits))}; }

// Through memcpy, since elements of a packed chunk need not be aligned.
template <class From, class To>
void convert_run(const std::byte* src, std::int64_t src_stride, std::byte* dst, std::int64_t dst_stride,
                 std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        From from;
        std::memcpy(&from, src + i * src_stride, sizeof(From));
        const To to = convert(from, static_cast<To*>(nullptr));
        std::memcpy(dst + i * dst_stride, &to, sizeof(To));
    }
}

template <class From, class To>
void convert_box(const StridedCopy& copy, const std::byte* src, std::byte* dst) {
    assert(copy.item == sizeof(From));
    StridedCopy outer = coalesce(copy, /*keep_item=*/true);
    std::int64_t count = 1;
    std::int64_t src_stride = sizeof(From);
    std::int64_t dst_stride = sizeof(To);
    if (!outer.sizes.empty()) {
        count = outer.sizes.back();
        src_stride = outer.src_strides.back();
        dst_stride = outer.dst_strides.back();
        outer.sizes.pop_back();
        outer.src_strides.pop_back();
        outer.dst_strides.pop_back();
    }
    // With both strides constant the loop vectorises.
    const bool dense = src_stride == sizeof(From) && dst_stride == sizeof(To);
    for_each_item(outer, [&](std::int64_t src_offset, std::int64_t dst_offset) {
        if (dense) {
            convert_run<From, To>(src + src_offset, sizeof(From), dst + dst_offset, sizeof(To), count);
        } else {
            convert_run<From, To>(src + src_offset, src_stride, dst + dst_offset, dst_stride, count);
        }
    });
}

using ConvertBox = void (*)(const StridedCopy& copy, const std::byte* src, std::byte* dst);

template <class From>
ConvertBox convert_from(DType to) {
    const auto choose = [](auto* type) -> ConvertBox {
        using To = std::remove_pointer_t<decltype(type)>;
        if constexpr (std::is_same_v<From, To>) {
            return strided_copy;
        } else {
            return convert_box<From, To>;
        }
    };
    switch (to) {
        case DType::kF64:
            return choose(static_cast<double*>(nullptr));
        case DType::kF32:
            return choose(static_cast<float*>(nullptr));
        case DType::kF16:
            return choose(static_cast<F16*>(nullptr));
        case DType::kBF16:
            return choose(static_cast<Bf16*>(nullptr));
        default:
            return nullptr;
    }
}

ConvertBox find_conversion(DType from, DType to) {
    switch (from) {
        case DType::kF64:
            return convert_from<double>(to);
        case DType::kF32:
            return convert_from<float>(to);
        case DType::kF16:
            return convert_from<F16>(to);
        case DType::kBF16:
            return convert_from<Bf16>(to);
        default:
            return nullptr;
    }
}

}  // namespace

bool can_convert(DType from, DType to) { return find_conversion(from, to) != nullptr; }

void converting_copy(const StridedCopy& copy, DType from, DType to, const std::byte* src, std::byte* dst) {
    const ConvertBox convert_all = find_conversion(from, to);
    assert(convert_all != nullptr);
    convert_all(copy, src, dst);
}

}  // namespace sluice

#include "runtime/base/shape.h"

#include <cassert>
#include <cstddef>

namespace sluice {

std::optional<std::int64_t> checked_mul(std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    if (__builtin_mul_overflow(a, b, &out)) {
        return std::nullopt;
    }
    return out;
}

std::optional<std::int64_t> checked_add(std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    if (__builtin_add_overflow(a, b, &out)) {
        return std::nullopt;
    }
    return out;
}

std::optional<std::int64_t> checked_num_elements(std::span<const std::int64_t> shape) {
    // A zero anywhere makes the product zero, so it must not hide an overflow of the other sizes from a reader who
    // multiplies in another order: sizes are checked without the zeros first.
    std::int64_t nonzero = 1;
    bool zero = false;
    for (const std::int64_t size : shape) {
        if (size < 0) {
            return std::nullopt;
        }
        if (size == 0) {
            zero = true;
            continue;
        }
        const auto product = checked_mul(nonzero, size);
        if (!product) {
            return std::nullopt;
        }
        nonzero = *product;
    }
    return zero ? 0 : nonzero;
}

std::int64_t num_elements(std::span<const std::int64_t> shape) {
    assert(checked_num_elements(shape).has_value());
    std::int64_t product = 1;
    for (const std::int64_t size : shape) {
        product *= size;
    }
    return product;
}

Dims contiguous_strides(std::span<const std::int64_t> shape, std::int64_t unit) {
    Dims strides(shape.size(), unit);
    std::int64_t step = unit;
    for (std::size_t d = shape.size(); d-- > 0;) {
        strides[d] = step;
        step *= shape[d] > 0 ? shape[d] : 1;
    }
    return strides;
}

std::string to_string(std::span<const std::int64_t> dims) {
    std::string out = "[";
    for (std::size_t d = 0; d < dims.size(); ++d) {
        out += (d == 0 ? "" : ", ") + std::to_string(dims[d]);
    }
    return out + "]";
}

}  // namespace sluice

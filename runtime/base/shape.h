#pragma once

#include <boost/container/small_vector.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace sluice {

/// Sizes, strides or coordinates of a tensor, outermost dimension first. No heap memory up to six dimensions.
class Dims : public boost::container::small_vector<std::int64_t, 6> {
public:
    using boost::container::small_vector<std::int64_t, 6>::small_vector;
    // Boost's iterators are not contiguous iterators of C++20 (before 1.80), so a span needs telling.
    operator std::span<const std::int64_t>() const { return {data(), size()}; }  // NOLINT(google-explicit-constructor)
};

/// a * b and a + b, or nothing when the result leaves 64 bits.
std::optional<std::int64_t> checked_mul(std::int64_t a, std::int64_t b);
std::optional<std::int64_t> checked_add(std::int64_t a, std::int64_t b);

/// Product of the sizes (1 for a 0-d tensor), or nothing on overflow or a negative size.
std::optional<std::int64_t> checked_num_elements(std::span<const std::int64_t> shape);
/// The same for a shape that is known to be valid.
std::int64_t num_elements(std::span<const std::int64_t> shape);

/// Row-major strides of `shape`, in units of `unit` (1 = elements, the item size = bytes).
Dims contiguous_strides(std::span<const std::int64_t> shape, std::int64_t unit = 1);

/// "[4, 128]".
std::string to_string(std::span<const std::int64_t> dims);

}  // namespace sluice

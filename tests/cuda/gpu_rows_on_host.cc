#include "tests/cuda/gpu_rows.h"

#include <cmath>

namespace sluice::test {
namespace {

float widen(std::byte value) {
    const auto bits = std::to_integer<unsigned>(value);
    const unsigned exponent = bits >> 3 & 15U;
    const auto mantissa = static_cast<float>(bits & 7U);
    if ((bits & 0x7FU) == 0x7FU) {
        return std::nanf("");
    }
    const float magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8.0F + mantissa, static_cast<int>(exponent) - 10);
    return (bits & 0x80U) != 0 ? -magnitude : magnitude;
}

}  // namespace

std::vector<float> row_sums(const BlockQuantisation& weight) {
    std::vector<float> sums(static_cast<std::size_t>(weight.matrices * weight.rows));
    for (std::int64_t row = 0; row < weight.matrices * weight.rows; ++row) {
        const std::int64_t block_row = row / weight.rows * weight.block_rows() + row % weight.rows / kQuantiseBlock;
        float sum = 0;
        for (std::int64_t column = 0; column < weight.columns; ++column) {
            // Kept apart, so that no compiler fuses them.
            const volatile float product = widen(weight.values[row * weight.columns + column]) *
                                           weight.scales[block_row * weight.block_columns() + column / kQuantiseBlock];
            sum = sum + product;
        }
        sums[static_cast<std::size_t>(row)] = sum;
    }
    return sums;
}

}  // namespace sluice::test

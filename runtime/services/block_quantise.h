#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

#include <cstddef>
#include <cstdint>

/// Block quantisation to f8e4m3, as inference engines store linear and expert weights. Per block of 128 x 128 elements (smaller at the
/// edges), all in f32:
///   scale = max(largest |x|, 1e-4) / 448,   q = f8e4m3(x / scale), to nearest even, saturating
/// A NaN in a block makes its scale and all its values NaN; an infinity makes the scale infinite, its own value NaN and the others 0.
namespace sluice {

inline constexpr std::int64_t kQuantiseBlock = 128;

/// Matrices of equal shape, each row-major without gaps, one after the other; so are values and scales.
struct BlockQuantisation {
    std::int64_t matrices = 1;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    DType from = DType::kBF16;  ///< bf16, f16 or f32.
    const std::byte* source = nullptr;
    std::byte* values = nullptr;  ///< One byte each.
    float* scales = nullptr;      ///< [matrices, ceil(rows / 128), ceil(columns / 128)].

    [[nodiscard]] std::int64_t block_rows() const { return (rows + kQuantiseBlock - 1) / kQuantiseBlock; }
    [[nodiscard]] std::int64_t block_columns() const { return (columns + kQuantiseBlock - 1) / kQuantiseBlock; }
};

/// ok, or why this cannot be quantised.
Status check_quantisation(const BlockQuantisation& job);

/// In host memory. The GPU's (runtime/cuda) gives the same bits.
void quantise_blocks(const BlockQuantisation& job);

}  // namespace sluice

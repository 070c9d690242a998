#include "runtime/services/block_quantise.h"

#include "runtime/base/float8_bits.h"
#include "runtime/base/float_bits.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace sluice {
namespace {

constexpr float kLeastAmax = 1e-4F;
constexpr float kLargestValue = 448.0F;

template <class Bits>
float widened(Bits bits, DType from) {
    if constexpr (sizeof(Bits) == 4) {
        return std::bit_cast<float>(bits);
    } else {
        return from == DType::kBF16 ? f32_from_bf16(bits) : f32_from_f16(bits);
    }
}

template <class Bits>
void quantise_block(const BlockQuantisation& job, std::int64_t matrix, std::int64_t block_row,
                    std::int64_t block_column) {
    const std::int64_t row_begin = block_row * kQuantiseBlock;
    const std::int64_t column_begin = block_column * kQuantiseBlock;
    const std::int64_t row_end = std::min(job.rows, row_begin + kQuantiseBlock);
    const auto width = static_cast<std::size_t>(std::min(job.columns, column_begin + kQuantiseBlock) - column_begin);
    const auto at = [&](std::int64_t row) { return (matrix * job.rows + row) * job.columns + column_begin; };
    Bits line[kQuantiseBlock];
    const auto read = [&](std::int64_t row) {
        std::memcpy(line, job.source + at(row) * static_cast<std::int64_t>(sizeof(Bits)), width * sizeof(Bits));
    };

    // Magnitudes compare as their bits do, and a NaN is above all others: the block's scale then is one.
    std::uint32_t largest = 0;
    for (std::int64_t row = row_begin; row < row_end; ++row) {
        read(row);
        for (std::size_t i = 0; i < width; ++i) {
            largest =
                std::max(largest, std::bit_cast<std::uint32_t>(widened(line[i], job.from)) & std::uint32_t{0x7FFFFFFF});
        }
    }
    const auto amax = std::bit_cast<float>(largest);
    const float scale = (amax < kLeastAmax ? kLeastAmax : amax) / kLargestValue;
    job.scales[(matrix * job.block_rows() + block_row) * job.block_columns() + block_column] = scale;
    for (std::int64_t row = row_begin; row < row_end; ++row) {
        read(row);
        std::byte* out = job.values + at(row);
        for (std::size_t i = 0; i < width; ++i) {
            out[i] = static_cast<std::byte>(f8e4m3_from_f32(widened(line[i], job.from) / scale));
        }
    }
}

}  // namespace

Status check_quantisation(const BlockQuantisation& job) {
    if (job.from != DType::kBF16 && job.from != DType::kF16 && job.from != DType::kF32) {
        return invalid_argument(fmt::format("block quantisation reads bf16, f16 or f32, not {}", to_string(job.from)));
    }
    if (job.matrices < 0 || job.rows < 0 || job.columns < 0) {
        return invalid_argument(fmt::format("block quantisation of {} matrices of {} x {}: no size may be negative",
                                            job.matrices, job.rows, job.columns));
    }
    return ok_status();
}

void quantise_blocks(const BlockQuantisation& job) {
    for (std::int64_t matrix = 0; matrix < job.matrices; ++matrix) {
        for (std::int64_t row = 0; row < job.block_rows(); ++row) {
            for (std::int64_t column = 0; column < job.block_columns(); ++column) {
                if (job.from == DType::kF32) {
                    quantise_block<std::uint32_t>(job, matrix, row, column);
                } else {
                    quantise_block<std::uint16_t>(job, matrix, row, column);
                }
            }
        }
    }
}

}  // namespace sluice

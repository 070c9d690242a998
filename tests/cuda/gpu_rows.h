#pragma once

#include "runtime/base/status.h"
#include "runtime/services/block_quantise.h"

#include <cstddef>
#include <cstdint>
#include <vector>

struct CUstream_st;

/// Stands for an engine's kernels: reads a block-quantised weight at the addresses that it was given.
namespace sluice::test {

/// sums[row] = sum over the columns, in order, of value * scale, in f32 without fused operations; rows of all matrices.
Status launch_row_sums(const BlockQuantisation& weight, float* sums, CUstream_st* stream);
/// The same on the processor, of `values` and `scales` in host memory.
std::vector<float> row_sums(const BlockQuantisation& weight);

}  // namespace sluice::test

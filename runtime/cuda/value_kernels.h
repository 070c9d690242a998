#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/cuda/copy_kernels.h"

#include <cstdint>

struct CUstream_st;

/// The values of tensor_values.h, made and checked where the weights are.
namespace sluice {

/// A tensor, by the tags of a program whose source side counts bytes of full tensors.
struct ValueTensor {
    std::uint64_t name_hash = 0;
    DType dtype = DType::kU8;
};

/// Writes the target side of `program` with the elements of `version` that its source side names. `tensors` holds one for each
/// tag, in device memory.
Status launch_fill_values(const DeviceProgramView& program, const ValueTensor* tensors, std::int64_t version,
                          CUstream_st* stream);
/// Adds to `*different` (device memory) the number of places of up to 16 bytes at which the target side is not that.
Status launch_check_values(const DeviceProgramView& program, const ValueTensor* tensors, std::int64_t version,
                           std::uint64_t* different, CUstream_st* stream);

}  // namespace sluice

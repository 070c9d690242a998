#pragma once

#include "runtime/base/status.h"
#include "runtime/services/block_quantise.h"

struct CUstream_st;

namespace sluice {

/// Loads the kernels onto the current device, which CUDA otherwise does at the first launch, waiting for whatever runs there.
Status load_quantise_kernels();

/// Starts quantise_blocks() on memory of the device, on `stream`: each element is read once.
Status launch_quantise(const BlockQuantisation& job, CUstream_st* stream);

}  // namespace sluice

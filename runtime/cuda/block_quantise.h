#pragma once

#include "runtime/base/status.h"
#include "runtime/services/block_quantise.h"

struct CUstream_st;

namespace sluice {

/// Starts quantise_blocks() on memory of the device, on `stream`: each element is read once.
Status launch_quantise(const BlockQuantisation& job, CUstream_st* stream);

}  // namespace sluice

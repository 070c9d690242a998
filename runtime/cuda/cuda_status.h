#pragma once

#include "runtime/base/status.h"

#include <cuda_runtime_api.h>

#include <string>

namespace sluice {

/// The one mapping from CUDA's errors: ok, or a status that says what was done and what CUDA calls it.
Status from_cuda(cudaError_t error, const std::string& what);

}  // namespace sluice

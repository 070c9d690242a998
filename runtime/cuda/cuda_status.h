#pragma once

#include "runtime/base/status.h"

#include <cuda_runtime_api.h>

#include <string>

namespace sluice {

/// The one mapping from CUDA's errors: ok, or a status that says what was done and what CUDA calls it.
Status from_cuda(cudaError_t error, const std::string& what);

/// Whether a query's answer is "not yet". That is no error: it is taken off the thread, on which the embedding program would find it.
bool not_ready(cudaError_t answer);

}  // namespace sluice

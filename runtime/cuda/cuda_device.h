#pragma once

#include "runtime/base/status.h"
#include "runtime/services/device.h"

#include <memory>

namespace sluice {

/// Opens CUDA device `ordinal` for `lanes` threads that run programs. An error says why there is none: no CUDA in this build, no driver, no
/// such device. Initialises CUDA: not in a process that forks later.
Result<std::unique_ptr<Device>> open_cuda_device(int ordinal, int lanes);

}  // namespace sluice

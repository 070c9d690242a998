#pragma once

#include "runtime/base/status.h"
#include "runtime/services/device.h"

#include <memory>

namespace sluice {

/// A DeviceStream of CUDA device `ordinal`, which is the current one. It never waits for the legacy default stream unless it is told to follow it.
Result<std::unique_ptr<DeviceStream>> make_cuda_device_stream(int ordinal);

}  // namespace sluice

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_probe.h"

namespace sluice {

Result<std::unique_ptr<Device>> open_cuda_device(int /*ordinal*/, int /*lanes*/) {
    return Status(StatusCode::kUnsupported, "no GPU memory: " + probe_cuda().problem);
}

}  // namespace sluice

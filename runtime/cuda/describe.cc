#include "runtime/cuda/cuda_probe.h"

#include <fmt/format.h>

namespace sluice {

std::string describe(const CudaState& state) {
    std::string text = state.toolkit_version.empty() ? "no CUDA in this build" : "CUDA " + state.toolkit_version;
    if (!state.driver_version.empty()) {
        text += ", driver for " + state.driver_version;
    }
    if (!state.nccl_headers.empty()) {
        text += fmt::format(", NCCL {} ({})", state.nccl_headers,
                            state.nccl_library.empty() ? "no library here" : "library " + state.nccl_library);
    }
    if (!state.problem.empty()) {
        text += "; " + state.problem;
    }
    for (std::size_t i = 0; i < state.devices.size(); ++i) {
        const CudaDevice& device = state.devices[i];
        text += fmt::format("; {}: {}, {}.{}, {:.1f} GiB", i, device.name, device.compute_major, device.compute_minor,
                            static_cast<double>(device.memory_bytes) / (1ULL << 30));
    }
    return text;
}

}  // namespace sluice

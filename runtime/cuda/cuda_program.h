#pragma once

#include "runtime/cuda/copy_kernels.h"
#include "runtime/services/device.h"

#include <cstdint>

namespace sluice {

/// What Device::compile makes on a CUDA device.
class CudaProgram final : public DeviceProgram {
public:
    CudaProgram(const DeviceProgramView& program, const DeviceProgramView& wire) : view(program), wire_form(wire) {}
    [[nodiscard]] std::int64_t wire_bytes() const override { return view.wire_bytes; }

    const DeviceProgramView view;
    const DeviceProgramView wire_form;  ///< The wire form as one copy, to hash it; for programs that convert.
};

}  // namespace sluice

#pragma once

#include "cli/verify_full.h"
#include "cli/worker_parameters.h"
#include "runtime/services/device.h"

#include <memory>

namespace sluice::cli {

/// verify_full() of parameters wherever they lie, version after version. Generated values are compared on the device; only what is not right there, or
/// cannot be compared there (conversions, fills, files), is copied out and compared on the host. What it is given outlives it; the device may be null.
class ParameterVerifier {
public:
    ParameterVerifier(const Catalogue& catalogue, const Demand& demand, const WorkerParameters& parameters,
                      const WeightValues& values, Device* device)
        : catalogue_(catalogue), demand_(demand), parameters_(parameters), values_(values), device_(device) {}

    FullVerification verify(const Route& route, std::uint64_t version);

private:
    Result<bool> right_on_device(std::uint64_t version);

    const Catalogue& catalogue_;
    const Demand& demand_;
    const WorkerParameters& parameters_;
    const WeightValues& values_;
    Device* device_;
    std::unique_ptr<DeviceProgram> program_;  // made for the first version
};

}  // namespace sluice::cli

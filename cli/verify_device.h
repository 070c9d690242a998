#pragma once

#include "cli/verify_full.h"
#include "cli/worker_parameters.h"
#include "runtime/services/device.h"

namespace sluice::cli {

/// verify_full() of parameters wherever they lie. Generated values are compared on the device; only what is not right there, or cannot be
/// compared there (conversions, fills, files), is copied out and compared on the host.
FullVerification verify_parameters(const Catalogue& catalogue, const Demand& demand, const Route& route,
                                   const WorkerParameters& parameters, const WeightValues& values,
                                   std::uint64_t version, Device* device);

}  // namespace sluice::cli

#pragma once

#include "cli/weight_values.h"
#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/plan.h"
#include "runtime/base/status.h"
#include "worker/parameter_store.h"

#include <cstdint>

namespace sluice::cli {

/// `--verify full`: compares each element of each parameter with the value function (or the file) at its source coordinate, and
/// the filled elements with 0; not those of buffered parameters, which have no memory here. A mismatch names parameter, element, tensor and the trainer it came from.
struct FullVerification {
    std::int64_t mismatches = 0;  ///< Elements.
    Status status;                ///< Ok, or kMismatch with the first one.
};
FullVerification verify_full(const Catalogue& catalogue, const Demand& demand, const Route& route,
                             const ParameterStore& store, const WeightValues& values, std::uint64_t version);

}  // namespace sluice::cli

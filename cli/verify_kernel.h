#pragma once

#include "cli/kernel_storage.h"
#include "cli/verify_full.h"
#include "cli/weight_values.h"
#include "planner/catalogue.h"
#include "planner/demand.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::cli {

/// `--verify full` of what hooks have written: each value, scale and element of derived tensors is compared with the formula, computed on the processor
/// from the value function (or the file). `host`: KernelStorage::on_host(). A mismatch names tensor and element.
FullVerification verify_kernel_format(const Catalogue& catalogue, const Demand& demand, const KernelStorage& storage,
                                      std::span<const std::byte> host, const WeightValues& values,
                                      std::uint64_t version);

}  // namespace sluice::cli

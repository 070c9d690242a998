#pragma once

#include "planner/demand.h"
#include "planner/ids.h"
#include "runtime/base/status.h"
#include "runtime/services/block_quantise.h"
#include "worker/layer_hook.h"

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace sluice {

/// Writes weights as block-quantised f8e4m3 (runtime/services/block_quantise.h), on the processor or on the GPU, with the same bits.
class BlockQuantiseHook final : public LayerHook {
public:
    /// A parameter [rows, columns] or [experts, rows, columns], and where its kernel format is kept: host memory, or that of the worker's device.
    struct Target {
        ParameterId parameter = 0;
        std::byte* values = nullptr;  ///< A byte for each element, in the parameter's shape.
        float* scales = nullptr;      ///< [experts,] ceil(rows / 128), ceil(columns / 128).
    };
    /// `demand` outlives it.
    BlockQuantiseHook(const Demand& demand, std::vector<Target> targets)
        : demand_(demand), targets_(std::move(targets)) {}

    /// Refuses, by name, a target that is not buffered, has another number of dimensions, or a dtype that cannot be quantised.
    Status prepare(LayerAddresses addresses, Device* device) override;
    Status run(const LandedLayer& layer) override;

private:
    const Demand& demand_;
    std::vector<Target> targets_;
    std::vector<std::optional<BlockQuantisation>> jobs_;  // by ParameterId
};

/// What quantising `parameter` reads and writes; its addresses are still to be given.
Result<BlockQuantisation> quantisation_of(const Parameter& parameter);

}  // namespace sluice

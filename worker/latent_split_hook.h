#pragma once

#include "planner/demand.h"
#include "planner/ids.h"
#include "runtime/base/status.h"
#include "runtime/base/strided_copy.h"
#include "runtime/services/device.h"
#include "worker/kernel_format.h"
#include "worker/layer_hook.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace sluice {

/// Keeps the derived tensors of multi-head latent attention, w_kc and w_vc, in the dtype of kv_b_proj as it was pulled:
///   w_kc[h][r][i] = kv_b[h * (nope + value) + i][r]          memory [heads, rank, nope]
///   w_vc[h][j][r] = kv_b[h * (nope + value) + nope + j][r]   memory [heads, value, rank]
class LatentSplitHook final : public LayerHook {
public:
    struct Target {
        KernelFormat::LatentSplit split;
        std::byte* w_kc = nullptr;
        std::byte* w_vc = nullptr;
    };
    /// `demand` outlives it.
    LatentSplitHook(const Demand& demand, std::vector<Target> targets)
        : demand_(demand), targets_(std::move(targets)) {}

    /// Refuses, by name, a target that is not buffered or has other sizes than its split says.
    Status prepare(LayerAddresses addresses, Device* device) override;
    Status run(const LandedLayer& layer) override;

private:
    struct Job {
        const std::byte* source = nullptr;
        const Target* target = nullptr;
        StridedCopy keys, values;
        std::unique_ptr<DeviceProgram> program;  // both; null: host memory
    };

    const Demand& demand_;
    std::vector<Target> targets_;
    std::vector<std::optional<Job>> jobs_;  // by ParameterId
};

}  // namespace sluice

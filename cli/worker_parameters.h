#pragma once

#include "planner/demand.h"
#include "runtime/base/status.h"
#include "runtime/services/buffer.h"
#include "runtime/services/device.h"
#include "runtime/services/safetensors.h"
#include "worker/parameter_store.h"

#include <optional>
#include <vector>

namespace sluice::cli {

/// The parameters of a worker that has no engine around it: one block of host memory, or of a device's.
class WorkerParameters {
public:
    /// `demand` and `device` must outlive it; no device: host memory. Those of `buffered` land in layer buffers and have no memory here.
    static Result<WorkerParameters> allocate(const Demand& demand, Device* device = nullptr,
                                             const std::vector<ParameterId>& buffered = {});

    /// Fills everything that the trainer provides with 0xAB, so that a byte that is not written shows, and the declared fills
    /// with 0. Parameters that are not from the trainer are left alone.
    Status poison();

    [[nodiscard]] const ParameterStore& store() const { return store_; }

    /// What the parameters hold now, in host memory: themselves, or a copy out of the device's.
    struct OnHost {
        std::optional<Buffer> copy;
        ParameterStore store;
    };
    [[nodiscard]] Result<OnHost> on_host() const;
    /// All that have memory here, by the engine's names, for a file; they point into `host`.
    [[nodiscard]] std::vector<SafetensorsTensor> tensors(const OnHost& host) const;

private:
    WorkerParameters(const Demand& demand, Buffer memory, ParameterStore store, Device* device)
        : demand_(&demand), device_(device), memory_(std::move(memory)), store_(std::move(store)) {}

    void poison(const ParameterStore& store) const;

    const Demand* demand_;
    Device* device_;
    Buffer memory_;
    ParameterStore store_;
};

}  // namespace sluice::cli

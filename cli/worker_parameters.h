#pragma once

#include "planner/demand.h"
#include "runtime/base/status.h"
#include "runtime/services/buffer.h"
#include "runtime/services/device.h"
#include "worker/parameter_store.h"

#include <map>
#include <optional>
#include <string>

namespace sluice::cli {

/// The parameters of a worker that has no engine around it: one block of host memory, or of a device's.
class WorkerParameters {
public:
    /// `demand` and `device` must outlive it; no device: host memory.
    static Result<WorkerParameters> allocate(const Demand& demand, Device* device = nullptr);

    /// Fills everything that the trainer provides with 0xAB, so that a byte that is not written shows, and the declared fills
    /// with 0. Parameters that are not from the trainer are left alone.
    Status poison();

    [[nodiscard]] const ParameterStore& store() const { return store_; }

    /// Writes them as a safetensors file by the engine's names.
    Status dump(const std::string& path, const std::map<std::string, std::string>& metadata) const;

    /// What the parameters hold now, in host memory: themselves, or a copy out of the device's.
    struct OnHost {
        std::optional<Buffer> copy;
        ParameterStore store;
    };
    [[nodiscard]] Result<OnHost> on_host() const;

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

#pragma once

#include "planner/demand.h"
#include "runtime/base/status.h"
#include "runtime/services/buffer.h"
#include "worker/parameter_store.h"

#include <map>
#include <string>

namespace sluice::cli {

/// The parameters of a worker that has no engine around it: one block of host memory.
class WorkerParameters {
public:
    /// `demand` must outlive it.
    static Result<WorkerParameters> allocate(const Demand& demand);

    /// Fills everything that the trainer provides with 0xAB, so that a byte that is not written shows, and the declared fills
    /// with 0. Parameters that are not from the trainer are left alone.
    void poison();

    [[nodiscard]] const ParameterStore& store() const { return store_; }

    /// Writes them as a safetensors file by the engine's names.
    Status dump(const std::string& path, const std::map<std::string, std::string>& metadata) const;

private:
    WorkerParameters(const Demand& demand, Buffer memory, ParameterStore store)
        : demand_(&demand), memory_(std::move(memory)), store_(std::move(store)) {}

    const Demand* demand_;
    Buffer memory_;
    ParameterStore store_;
};

}  // namespace sluice::cli

#pragma once

#include "cli/weight_values.h"
#include "planner/catalogue.h"
#include "planner/ownership.h"
#include "runtime/base/status.h"
#include "runtime/services/device.h"
#include "runtime/services/shared_memory.h"
#include "trainer/weight_source.h"

#include <cstdint>
#include <memory>
#include <optional>

namespace sluice::cli {

/// What a trainer rank stores: the regions of `stored`, all in segment 0, in host memory or in that of a device.
class TrainerWeights {
public:
    /// `stored`, `catalogue`, `values` and `device` must outlive it; no device: host memory, which workers of this host may map if it is `mappable`.
    static Result<TrainerWeights> allocate(const Catalogue& catalogue, const Ownership& stored,
                                           const WeightValues& values, Device* device = nullptr, bool mappable = true);

    /// The optimiser's step: every element becomes that of `version`. Nobody may be reading.
    Status write_version(std::uint64_t version);

    [[nodiscard]] WeightSource::Segment segment() const;
    [[nodiscard]] std::span<std::byte> bytes() const { return shared_ ? shared_->buffer().bytes() : own_->bytes(); }

private:
    TrainerWeights(const Catalogue& catalogue, const Ownership& stored, const WeightValues& values, Device* device)
        : catalogue_(&catalogue), stored_(&stored), values_(&values), device_(device) {}
    void write_version(std::uint64_t version, std::byte* to) const;

    const Catalogue* catalogue_;
    const Ownership* stored_;
    const WeightValues* values_;
    Device* device_;
    std::optional<SharedBuffer> shared_;       // host memory that can be mapped
    std::optional<Buffer> own_;                // otherwise
    std::unique_ptr<DeviceProgram> generate_;  // where values are generated
};

}  // namespace sluice::cli

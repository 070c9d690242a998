#pragma once

#include "cli/weight_values.h"
#include "planner/catalogue.h"
#include "planner/ownership.h"
#include "runtime/base/status.h"
#include "runtime/services/shared_memory.h"

#include <cstdint>

namespace sluice::cli {

/// What a trainer rank stores, in host memory: the regions of `stored`, all in segment 0.
class TrainerWeights {
public:
    /// `stored` and `catalogue` must outlive it.
    static Result<TrainerWeights> allocate(const Catalogue& catalogue, const Ownership& stored);

    /// The optimiser's step: every element becomes that of `version`. Nobody may be reading.
    void write_version(const WeightValues& values, std::uint64_t version);

    [[nodiscard]] SharedBuffer& memory() { return memory_; }

private:
    TrainerWeights(const Catalogue& catalogue, const Ownership& stored, SharedBuffer memory)
        : catalogue_(&catalogue), stored_(&stored), memory_(std::move(memory)) {}

    const Catalogue* catalogue_;
    const Ownership* stored_;
    SharedBuffer memory_;
};

}  // namespace sluice::cli

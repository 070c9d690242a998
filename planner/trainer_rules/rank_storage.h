#pragma once

#include "planner/catalogue.h"
#include "planner/layout.h"
#include "planner/model_config.h"
#include "planner/ownership.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <vector>

namespace sluice {

/// A box that a gather makes whole on a rank: all of a dense tensor, or of the experts that the rank's place in ep holds.
struct GatheredBox {
    TensorId tensor = 0;
    Dims begin;
    Dims end;
    bool expert = false;  ///< Gathered over etp; otherwise over tp (and fsdp).
};

/// What one trainer rank stores, in one segment of memory (number 0).
struct RankStorage {
    int stage = 0;
    std::vector<OwnedRegion> regions;  // sorted by tensor, then begin
    std::int64_t bytes = 0;            // of the segment
    /// Those tensors of the rank's stage of which it stores only a part, by tensor.
    std::vector<GatheredBox> gathered;
};

/// Arrays start at multiples of this.
inline constexpr std::int64_t kArrayAlignment = 64;
std::int64_t aligned(std::int64_t offset);

/// Lays out what `rank` stores under `layout`. Refuses sizes that cannot be cut (plan refused) and layouts that do not fit the
/// model (invalid argument).
Result<RankStorage> rank_storage(const Catalogue& catalogue, const ModelConfig& config, const TrainerLayout& layout,
                                 int rank);

}  // namespace sluice

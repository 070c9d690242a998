#pragma once

#include "planner/catalogue.h"
#include "planner/layout.h"
#include "planner/model_config.h"
#include "planner/ownership.h"
#include "runtime/base/status.h"

#include <cstdint>

namespace sluice {

/// How a trainer offers its weights.
enum class SourceKind : std::uint8_t {
    kResident,  ///< All that a rank stores is readable in place, in segment 0.
    kGathered,  ///< Tensors that a rank stores whole are served in place; those it stores in part are gathered group by group.
};

/// What trainer rank `rank` can serve. Its arrays lie one after the other in segment 0, each 64-byte aligned, in catalogue
/// order; with kGathered the tensors it stores in part are offered whole (experts: over etp, for the experts of its
/// place in ep) from kGatheredSegment, at offsets in the group's buffer. Refuses what cannot be cut (plan refused).
Result<Ownership> trainer_ownership(const Catalogue& catalogue, const ModelConfig& config, const TrainerLayout& layout,
                                    int rank, SourceKind source);

}  // namespace sluice

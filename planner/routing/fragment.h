#pragma once

#include "planner/demand.h"
#include "planner/plan.h"
#include "planner/routing/owner_grid.h"
#include "planner/routing/source_walk.h"

#include <cstdint>
#include <vector>

namespace sluice {

/// A part of a copy record whose bytes all have the same owners.
struct Fragment {
    DemandId demand = 0;
    std::int32_t record = 0;
    std::int32_t group_position = 0;
    OwnerSetId owners = 0;  ///< After the demand's choice of allowed owners.
    const TensorGrid::Cell* cell = nullptr;
    SourceWalk walk;
};

/// Splits a walk: returns about the first `items` of its items, in destination order, and adds the rest to `left`, what comes
/// next last. Cuts whole rows of the outermost destination dimension; goes deeper only into rows of more than `indivisible` items.
SourceWalk take_items(SourceWalk walk, std::int64_t items, std::int64_t indivisible, std::vector<SourceWalk>& left);

/// The piece that copies `walk` of `record` from the owner's box. `walk` comes from unfold().
Piece piece_from(const CopyRecord& record, const SourceAxes& axes, std::size_t tensor_dims, const OwnedRegion& region,
                 const SourceWalk& walk);

}  // namespace sluice

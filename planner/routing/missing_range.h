#pragma once

#include "planner/catalogue.h"
#include "planner/routing/owner_grid.h"
#include "planner/routing/source_walk.h"
#include "runtime/base/status.h"

#include <span>

namespace sluice {

/// The refusal of a range that no (allowed) owner offers: names the tensor, the wanted range, who wants it, and what is offered by whom.
Status missing_range(const CatalogueTensor& tensor, const SourceAxes& axes, const SourceWalk& walk,
                     std::span<const CellOwner> offered, std::span<const int> workers, std::span<const int> allowed);

}  // namespace sluice

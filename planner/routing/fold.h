#pragma once

#include "planner/ownership.h"
#include "planner/routing/source_walk.h"

#include <vector>

namespace sluice {

/// Appends parts of `walk`, which lies in the box of `region`, that together are all of it and step through the region's
/// memory evenly. In them the folded axis counts periods from the region's begin, and one more axis at the end the place
/// within a period. A region that folds nothing gets the walk itself.
void unfold(SourceWalk walk, const OwnedRegion& region, std::vector<SourceWalk>& out);

}  // namespace sluice

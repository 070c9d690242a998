#pragma once

#include "planner/ids.h"
#include "planner/ownership.h"

#include <span>
#include <vector>

namespace sluice {

class Catalogue;

/// The one order of groups for everybody: the first group of each stage, then the second of each, and so on, so that all
/// stages send all the time. A group that several stages own (a tied table) counts for the first of them; groups
/// that nobody owns come last. Every group of the catalogue is in it once.
std::vector<GroupId> group_order(const Catalogue& catalogue, std::span<const Ownership> owners);

}  // namespace sluice

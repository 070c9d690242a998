#include "planner/group_order.h"

#include "planner/catalogue.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>

namespace sluice {

std::vector<GroupId> group_order(const Catalogue& catalogue, std::span<const Ownership> owners) {
    constexpr int kNobody = std::numeric_limits<int>::max();
    std::vector<int> stage_of(static_cast<std::size_t>(catalogue.groups()), kNobody);
    for (const Ownership& owner : owners) {
        for (const OwnedRegion& region : owner.regions) {
            int& stage = stage_of[static_cast<std::size_t>(catalogue[region.tensor].group)];
            stage = std::min(stage, owner.stage);
        }
    }
    struct Place {
        int position;  // within its stage
        int stage;
        GroupId group;
    };
    std::vector<Place> places;
    std::vector<std::pair<int, int>> next_position;  // (stage, groups so far)
    for (GroupId group = 0; group < catalogue.groups(); ++group) {
        const int stage = stage_of[static_cast<std::size_t>(group)];
        auto it =
            std::find_if(next_position.begin(), next_position.end(), [&](const auto& s) { return s.first == stage; });
        if (it == next_position.end()) {
            it = next_position.insert(next_position.end(), {stage, 0});
        }
        places.push_back({stage == kNobody ? kNobody : it->second++, stage, group});
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
        return std::tie(a.position, a.stage, a.group) < std::tie(b.position, b.stage, b.group);
    });
    std::vector<GroupId> order;
    for (const Place& place : places) {
        order.push_back(place.group);
    }
    return order;
}

}  // namespace sluice

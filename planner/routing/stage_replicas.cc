#include "planner/routing/stage_replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

using Box = std::pair<Dims, Dims>;

std::string box_text(const Box& box) {
    std::vector<std::string> ranges;
    for (std::size_t d = 0; d < box.first.size(); ++d) {
        ranges.push_back(fmt::format("{}:{}", box.first[d], box.second[d]));
    }
    return fmt::format("[{}]", fmt::join(ranges, ", "));
}

}  // namespace

Status check_stage_replicas(const Catalogue& catalogue, std::span<const Ownership> owners) {
    constexpr int kNobody = -1;
    std::vector<int> stage_of(catalogue.size(), kNobody);
    std::map<TensorId, std::map<int, std::set<Box>>> shared;
    for (const Ownership& owner : owners) {
        for (const OwnedRegion& region : owner.regions) {
            int& stage = stage_of[static_cast<std::size_t>(region.tensor)];
            if (stage == kNobody) {
                stage = owner.stage;
            } else if (stage != owner.stage) {
                shared[region.tensor];
            }
        }
    }
    if (shared.empty()) {
        return ok_status();
    }
    for (const Ownership& owner : owners) {
        for (const OwnedRegion& region : owner.regions) {
            if (const auto found = shared.find(region.tensor); found != shared.end()) {
                found->second[owner.stage].emplace(region.begin, region.end);
            }
        }
    }
    for (const auto& [tensor, stages] : shared) {
        const auto& [first_stage, first] = *stages.begin();
        for (const auto& [stage, boxes] : stages) {
            if (boxes == first) {
                continue;
            }
            std::vector<Box> only;
            std::set_symmetric_difference(first.begin(), first.end(), boxes.begin(), boxes.end(),
                                          std::back_inserter(only));
            const bool in_first = first.contains(only.front());
            return plan_refused(fmt::format(
                "tensor {} is on stages {} and {}, but only stage {} has its box {}; what two stages hold must be "
                "equal",
                catalogue[tensor].name, first_stage, stage, in_first ? first_stage : stage, box_text(only.front())));
        }
    }
    return ok_status();
}

}  // namespace sluice

#include "planner/plan.h"

#include <algorithm>

namespace sluice {

OwnerRoute owner_route(const Plan& plan, int owner) {
    OwnerRoute out;
    std::vector<bool> serves(plan.group_order.size(), false);
    for (std::size_t d = 0; d < plan.routes.size(); ++d) {
        const Route& route = plan.routes[d];
        ServedDemand served{static_cast<DemandId>(d), route.workers, {}};
        for (std::size_t c = 0; c < route.chunks.size(); ++c) {
            const Chunk& chunk = route.chunks[c];
            if (chunk.owner == owner) {
                served.chunks.push_back({static_cast<ChunkId>(c), chunk.group, chunk.path, chunk.wire_bytes, chunk.pieces});
                serves[static_cast<std::size_t>(chunk.group)] = true;
            }
        }
        if (!served.chunks.empty()) {
            out.demands.push_back(std::move(served));
        }
    }
    std::copy_if(plan.group_order.begin(), plan.group_order.end(), std::back_inserter(out.group_order),
                 [&](GroupId group) { return serves[static_cast<std::size_t>(group)]; });
    return out;
}

}  // namespace sluice

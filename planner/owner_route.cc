#include "planner/plan.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace sluice {
namespace {

void add_served(const Plan& plan, DemandId demand, ChunkId id, OwnerRoute& out) {
    const Route& route = plan.routes[static_cast<std::size_t>(demand)];
    if (out.demands.empty() || out.demands.back().demand != demand) {
        out.demands.push_back({demand, route.workers, {}});
    }
    const Chunk& chunk = route.chunks[static_cast<std::size_t>(id)];
    out.demands.back().chunks.push_back({id, chunk.group, chunk.path, chunk.wire_bytes, chunk.pieces});
}

std::vector<GroupId> served_groups(const Plan& plan, const OwnerRoute& route) {
    std::vector<bool> serves(plan.group_order.size(), false);
    for (const ServedDemand& demand : route.demands) {
        for (const ServedChunk& chunk : demand.chunks) {
            serves[static_cast<std::size_t>(chunk.group)] = true;
        }
    }
    std::vector<GroupId> out;
    std::copy_if(plan.group_order.begin(), plan.group_order.end(), std::back_inserter(out),
                 [&](GroupId group) { return serves[static_cast<std::size_t>(group)]; });
    return out;
}

// Calls `visit(demand, chunk id, chunk)` for all chunks in the order in which demands read them.
template <class Visit>
void for_each_chunk(const Plan& plan, Visit visit) {
    for (std::size_t d = 0; d < plan.routes.size(); ++d) {
        for (std::size_t c = 0; c < plan.routes[d].chunks.size(); ++c) {
            visit(static_cast<DemandId>(d), static_cast<ChunkId>(c), plan.routes[d].chunks[c]);
        }
    }
}

}  // namespace

OwnerRoute owner_route(const Plan& plan, int owner) {
    OwnerRoute out;
    for_each_chunk(plan, [&](DemandId demand, ChunkId id, const Chunk& chunk) {
        if (chunk.owner == owner) {
            add_served(plan, demand, id, out);
        }
    });
    out.group_order = served_groups(plan, out);
    return out;
}

std::vector<OwnerRoute> owner_routes(const Plan& plan, int owners) {
    std::vector<OwnerRoute> out(static_cast<std::size_t>(owners));
    for_each_chunk(plan, [&](DemandId demand, ChunkId id, const Chunk& chunk) {
        add_served(plan, demand, id, out[static_cast<std::size_t>(chunk.owner)]);
    });
    for (OwnerRoute& route : out) {
        route.group_order = served_groups(plan, route);
    }
    return out;
}

}  // namespace sluice

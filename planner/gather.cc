#include "planner/gather.h"

#include "planner/trainer_ownership.h"
#include "planner/trainer_rules/rank_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace sluice {
namespace {

// Ranks of the same stage that `same` accepts, by rank.
template <class Same>
std::vector<int> peers(const TrainerLayout& layout, int rank, Same same) {
    const int stage_ranks = layout.world_size() / layout.pp;
    const int first = rank / stage_ranks * stage_ranks;
    std::vector<int> out;
    for (int other = first; other < first + stage_ranks; ++other) {
        if (same(layout.coordinates(other))) {
            out.push_back(other);
        }
    }
    return out;
}

// The whole box `region` of a gathered tensor, copied to its place in the group's buffer.
CopyRecord identity_copy(const CatalogueTensor& tensor, const OwnedRegion& region, ParameterId buffer) {
    CopyRecord record;
    record.tensor = region.tensor;
    record.parameter = buffer;
    record.source_dtype = tensor.dtype;
    record.parameter_dtype = tensor.dtype;
    record.copy.item = size_of(tensor.dtype);
    record.copy.dst_offset = region.offset;
    const Dims full = contiguous_strides(tensor.shape, record.copy.item);
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
        record.copy.src_offset += region.begin[d] * full[d];
        record.copy.sizes.push_back(region.end[d] - region.begin[d]);
        record.copy.src_strides.push_back(full[d]);
        record.copy.dst_strides.push_back(region.strides[d]);
    }
    return record;
}

// One route out of the two of a rank, in the order in which groups are gathered.
Route merge_routes(Route dense, Route experts, const std::vector<std::size_t>& position) {
    Route out;
    out.workers = std::move(dense.workers);
    std::merge(std::make_move_iterator(dense.chunks.begin()), std::make_move_iterator(dense.chunks.end()),
               std::make_move_iterator(experts.chunks.begin()), std::make_move_iterator(experts.chunks.end()),
               std::back_inserter(out.chunks), [&](const Chunk& a, const Chunk& b) {
                   return position[static_cast<std::size_t>(a.group)] < position[static_cast<std::size_t>(b.group)];
               });
    return out;
}

}  // namespace

Result<Ownership> shard_ownership(const Catalogue& catalogue, const ModelConfig& config, const TrainerLayout& layout,
                                  int rank) {
    return trainer_ownership(catalogue, config, layout, rank, SourceKind::kResident);
}

Result<GatherDemand> gather_demand(const Catalogue& catalogue, const ModelConfig& config, const TrainerLayout& layout,
                                   int rank) {
    SLUICE_ASSIGN_OR_RETURN(const RankStorage storage, rank_storage(catalogue, config, layout, rank));
    SLUICE_ASSIGN_OR_RETURN(const Ownership offered,
                            trainer_ownership(catalogue, config, layout, rank, SourceKind::kGathered));
    GatherDemand out;
    std::vector<ParameterId> buffer_of(static_cast<std::size_t>(catalogue.groups()), -1);
    for (std::size_t group = 0; group < offered.gathered_bytes.size(); ++group) {
        if (offered.gathered_bytes[group] > 0) {
            buffer_of[group] = static_cast<ParameterId>(out.groups.size());
            out.groups.push_back(static_cast<GroupId>(group));
            out.dense.parameters.push_back(
                {fmt::format("group {}", group), DType::kU8, Dims{offered.gathered_bytes[group]}});
        }
    }
    out.experts.parameters = out.dense.parameters;

    auto box = storage.gathered.begin();
    for (const OwnedRegion& region : offered.regions) {
        if (region.segment != kGatheredSegment) {
            continue;
        }
        // Both lists are by tensor and name the same tensors.
        const bool expert = (box++)->expert;
        const CatalogueTensor& tensor = catalogue[region.tensor];
        (expert ? out.experts : out.dense)
            .records.push_back(identity_copy(tensor, region, buffer_of[static_cast<std::size_t>(tensor.group)]));
    }
    const TrainerLayout::Coordinates me = layout.coordinates(rank);
    out.dense_owners = peers(layout, rank, [&](const TrainerLayout::Coordinates& c) { return c.dp == me.dp; });
    out.expert_owners =
        layout.fsdp > 1 ? out.dense_owners : peers(layout, rank, [&](const TrainerLayout::Coordinates& c) {
            return c.ep == me.ep && c.edp == me.edp;
        });
    return out;
}

Result<Plan> route_gather(const Catalogue& catalogue, std::span<const Ownership> shards,
                          std::span<const GatherDemand> demands, const RouteOptions& options) {
    std::vector<DemandRequest> requests;
    for (std::size_t rank = 0; rank < demands.size(); ++rank) {
        const int self = static_cast<int>(rank);
        requests.push_back({&demands[rank].dense, {self}, demands[rank].dense_owners, self});
        requests.push_back({&demands[rank].experts, {self}, demands[rank].expert_owners, self});
    }
    RouteOptions pulled = options;
    if (options.path == RouteOptions::PathChoice::kMapped) {
        pulled.path = RouteOptions::PathChoice::kAuto;  // Only workers map.
    }
    SLUICE_ASSIGN_OR_RETURN(Plan both, route(catalogue, shards, requests, pulled));
    Plan out;
    out.group_order = std::move(both.group_order);
    out.fingerprint = both.fingerprint;
    std::vector<std::size_t> position(out.group_order.size());
    for (std::size_t i = 0; i < position.size(); ++i) {
        position[static_cast<std::size_t>(out.group_order[i])] = i;
    }
    for (std::size_t rank = 0; rank < demands.size(); ++rank) {
        out.routes.push_back(
            merge_routes(std::move(both.routes[2 * rank]), std::move(both.routes[2 * rank + 1]), position));
    }
    return out;
}

GatherBytes gather_bytes(const TrainerLayout& layout, int rank, const GatherDemand& demand, const Route& route) {
    struct Place {
        ParameterId buffer = 0;
        std::int64_t begin = 0;
        bool expert = false;
    };
    const auto before = [](const Place& a, const Place& b) {
        return std::pair(a.buffer, a.begin) < std::pair(b.buffer, b.begin);
    };
    std::vector<Place> places;
    for (const CopyRecord& record : demand.dense.records) {
        places.push_back({record.parameter, record.copy.dst_offset, false});
    }
    for (const CopyRecord& record : demand.experts.records) {
        places.push_back({record.parameter, record.copy.dst_offset, true});
    }
    std::sort(places.begin(), places.end(), before);

    GatherBytes bytes;
    const TrainerLayout::Coordinates me = layout.coordinates(rank);
    for (const Chunk& chunk : route.chunks) {
        const TrainerLayout::Coordinates peer = layout.coordinates(chunk.owner);
        for (const Piece& piece : chunk.pieces) {
            const auto after = std::upper_bound(places.begin(), places.end(),
                                                Place{piece.parameter, piece.copy.dst_offset, false}, before);
            // With fsdp there is no expert grid: experts are gathered like everything else.
            const bool expert = layout.fsdp == 1 && after != places.begin() && std::prev(after)->expert;
            std::int64_t& over = chunk.owner == rank ? bytes.local
                                 : peer.pp != me.pp  ? bytes.pp
                                 : expert            ? (peer.ep != me.ep ? bytes.ep : bytes.etp)
                                 : peer.tp != me.tp  ? bytes.tp
                                                     : bytes.fsdp;
            over += piece.wire_bytes();
        }
    }
    return bytes;
}

Result<GatherPlan> gather_plan(const Catalogue& catalogue, const ModelConfig& config, const TrainerLayout& layout,
                               const RouteOptions& options) {
    GatherPlan out;
    for (int rank = 0; rank < layout.world_size(); ++rank) {
        SLUICE_ASSIGN_OR_RETURN(Ownership owner, shard_ownership(catalogue, config, layout, rank));
        SLUICE_ASSIGN_OR_RETURN(GatherDemand demand, gather_demand(catalogue, config, layout, rank));
        out.owners.push_back(std::move(owner));
        out.demands.push_back(std::move(demand));
    }
    SLUICE_ASSIGN_OR_RETURN(out.plan, route_gather(catalogue, out.owners, out.demands, options));
    for (int rank = 0; rank < layout.world_size(); ++rank) {
        const auto index = static_cast<std::size_t>(rank);
        out.bytes.push_back(gather_bytes(layout, rank, out.demands[index], out.plan.routes[index]));
    }
    return out;
}

}  // namespace sluice

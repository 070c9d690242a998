#include "planner/router.h"

#include "planner/group_order.h"
#include "planner/routing/balance.h"
#include "planner/routing/chunker.h"
#include "planner/routing/fingerprint.h"
#include "planner/routing/fold.h"
#include "planner/routing/fragment.h"
#include "planner/routing/missing_range.h"
#include "planner/routing/owner_grid.h"
#include "planner/routing/route_rest.h"
#include "planner/routing/source_walk.h"
#include "planner/routing/stage_replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace sluice {
namespace {

// Work is handed to owners in portions of at least this, and of about 1/kPortions of a mean load: fine enough for an
// even spread, coarse enough not to shred runs.
constexpr std::int64_t kLeastPortion = 4 << 10;
constexpr double kPortions = 400;

class Router {
public:
    Router(const Catalogue& catalogue, std::span<const Ownership> owners, std::span<const DemandRequest> demands,
           const RouteOptions& options)
        : catalogue_(catalogue), owners_(owners), demands_(demands), options_(options), index_(catalogue, owners) {}

    /// `kept` is empty, or what stays of each demand's route.
    Result<Plan> run(std::span<const KeptRoute> kept) {
        Plan plan;
        plan.group_order = group_order(catalogue_, owners_);
        position_.assign(plan.group_order.size(), 0);
        for (std::size_t i = 0; i < plan.group_order.size(); ++i) {
            position_[static_cast<std::size_t>(plan.group_order[i])] = static_cast<std::int32_t>(i);
        }
        fragments_.resize(plan.group_order.size());
        for (std::size_t d = 0; d < demands_.size(); ++d) {
            SLUICE_RETURN_IF_ERROR(resolve_demand(static_cast<DemandId>(d)));
        }
        hand_out(kept);
        for (std::size_t d = 0; d < demands_.size(); ++d) {
            if (!kept.empty()) {
                add_pieces_of(kept[d].cut, d);
            }
            std::vector<Chunk> chunks = make_chunks(std::move(pieces_[d]), options_, d, index_.sets());
            plan.routes.push_back(
                {kept.empty() ? std::move(chunks) : in_reading_order(kept[d].whole, std::move(chunks)),
                 demands_[d].workers});
        }
        plan.fingerprint = plan_fingerprint(catalogue_, owners_, demands_, options_);
        return plan;
    }

private:
    // The cuts of a tensor's last axis in the steps of a record of wider elements, which must not be cut inside one.
    static Result<std::vector<std::int64_t>> wide_cuts(const TensorGrid& grid, const CatalogueTensor& tensor,
                                                       const SourceAxes& axes) {
        const std::size_t axis = tensor.shape.size() - 1;
        std::vector<std::int64_t> cuts = grid.cuts[axis];
        for (std::int64_t& cut : cuts) {
            if (cut % axes.elements_per_step != 0) {
                return plan_refused(
                    fmt::format("tensor {}: a conversion reads {} elements as one, but an owner's box ends at "
                                "element {} of axis {}; cut it at multiples of {}",
                                tensor.name, axes.elements_per_step, cut, axis, axes.elements_per_step));
            }
            cut /= axes.elements_per_step;
        }
        return cuts;
    }

    // A record of wider elements needs neighbours that lie side by side.
    Status check_neighbours(const CatalogueTensor& tensor, const SourceAxes& axes, const TensorGrid::Cell& cell) const {
        if (axes.elements_per_step == 1) {
            return ok_status();
        }
        const int last = static_cast<int>(tensor.shape.size()) - 1;
        for (const auto& owner : cell.owners) {
            const std::int64_t step = owner.region->strides.back();
            const bool folds = owner.region->fold.axis == last;
            if (folds || step != size_of(tensor.dtype)) {
                return plan_refused(fmt::format(
                    "tensor {}: a conversion reads {} elements as one, but an owner {} axis {}{}; view it as "
                    "another dtype after it was copied",
                    tensor.name, axes.elements_per_step, folds ? "folds" : "keeps those of", last,
                    folds ? "" : fmt::format(" {} bytes apart", step)));
            }
        }
        return ok_status();
    }

    Status check_record(const DemandRequest& request, const CopyRecord& record) const {
        const Demand& demand = *request.demand;
        if (record.tensor < 0 || static_cast<std::size_t>(record.tensor) >= catalogue_.size()) {
            return plan_refused(fmt::format(
                "a copy record names tensor {}, but the catalogue has {}; use the same catalogue everywhere",
                record.tensor, catalogue_.size()));
        }
        if (record.parameter < 0 || static_cast<std::size_t>(record.parameter) >= demand.parameters.size()) {
            return plan_refused(
                fmt::format("a copy record names parameter {}, but the demand has {}; correct the loader",
                            record.parameter, demand.parameters.size()));
        }
        if (record.converts() && record.copy.item != size_of(record.source_dtype)) {
            return plan_refused(
                fmt::format("tensor {}: a converting copy record has items of {} bytes, not of one {} element",
                            catalogue_[record.tensor].name, record.copy.item, to_string(record.source_dtype)));
        }
        return ok_status();
    }

    // Finds the owners of every byte of a demand.
    Status resolve_demand(DemandId d) {
        const DemandRequest& request = demands_[static_cast<std::size_t>(d)];
        OwnerSetId allowed = 0;
        if (!request.allowed_owners.empty()) {
            std::vector<int> ranks = request.allowed_owners;
            std::sort(ranks.begin(), ranks.end());
            ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
            allowed = index_.sets().intern(std::move(ranks));
        }
        std::vector<SourceWalk> walks;
        std::vector<std::pair<std::size_t, SourceWalk>> parts;  // (cell, part)
        std::vector<std::pair<std::size_t, SourceWalk>> cut;
        std::vector<std::int64_t> wide;
        const std::vector<CopyRecord>& records = request.demand->records;
        axes_.emplace_back();
        axes_.back().reserve(records.size());
        for (std::size_t r = 0; r < records.size(); ++r) {
            const CopyRecord& record = records[r];
            SLUICE_RETURN_IF_ERROR(check_record(request, record));
            const CatalogueTensor& tensor = catalogue_[record.tensor];
            const SourceAxes& axes = axes_.back().emplace_back(source_axes(tensor.shape, tensor.dtype, record));
            if (record.copy.items() == 0 || record.copy.item == 0) {
                continue;
            }
            if (tensor.elements() == 0 || (record.converts() && axes.unit != record.copy.item) ||
                (axes.elements_per_step > 1 && tensor.shape.back() % axes.elements_per_step != 0)) {
                return plan_refused(fmt::format(
                    "tensor {} of shape {}: a copy record of {} elements does not fit it; correct the loader",
                    tensor.name, to_string(tensor.shape), to_string(record.source_dtype)));
            }
            walks.clear();
            if (const Status status = decompose(record, axes, walks); !status.ok()) {
                return status.with_context("tensor " + tensor.name);
            }
            const TensorGrid& grid = index_.grid(record.tensor);
            for (SourceWalk& walk : walks) {
                parts.clear();
                parts.emplace_back(0, std::move(walk));
                for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
                    std::span<const std::int64_t> cuts = grid.cuts[axis];
                    const std::size_t intervals = cuts.size() - 1;
                    if (axes.elements_per_step > 1 && axis + 1 == tensor.shape.size()) {
                        SLUICE_ASSIGN_OR_RETURN(wide, wide_cuts(grid, tensor, axes));
                        cuts = wide;
                    }
                    if (intervals == 1) {
                        continue;  // nothing to cut, and the cell's number does not change
                    }
                    cut.clear();
                    for (auto& [cell, part] : parts) {
                        split_on_axis(std::move(part), axis, cuts,
                                      [&, at = cell](std::size_t interval, SourceWalk piece) {
                                          cut.emplace_back(at * intervals + interval, std::move(piece));
                                      });
                    }
                    std::swap(parts, cut);
                }
                for (auto& [cell, part] : parts) {
                    const TensorGrid::Cell& owned = grid.cells[cell];
                    const OwnerSetId set =
                        request.allowed_owners.empty() ? owned.set : index_.sets().intersect(owned.set, allowed);
                    if (index_.sets()[set].empty()) {
                        return missing_range(tensor, axes, part, index_.boxes(record.tensor), request.workers,
                                             request.allowed_owners);
                    }
                    SLUICE_RETURN_IF_ERROR(check_neighbours(tensor, axes, owned));
                    const std::int32_t position = position_[static_cast<std::size_t>(tensor.group)];
                    fragments_[static_cast<std::size_t>(position)].push_back(
                        {d, static_cast<std::int32_t>(r), position, set, &owned, std::move(part)});
                }
            }
        }
        return ok_status();
    }

    [[nodiscard]] const CopyRecord& record_of(const Fragment& f) const {
        return demands_[static_cast<std::size_t>(f.demand)].demand->records[static_cast<std::size_t>(f.record)];
    }

    [[nodiscard]] std::int64_t readers_of(const Fragment& f) const {
        return std::max<std::int64_t>(
            1, static_cast<std::int64_t>(demands_[static_cast<std::size_t>(f.demand)].workers.size()));
    }

    // Bytes that an owner sends for one item of the fragment, to all workers that share the demand.
    [[nodiscard]] std::int64_t sent_per_item(const Fragment& f) const {
        const CopyRecord& record = record_of(f);
        const std::int64_t item =
            record.converts() ? std::min(size_of(record.source_dtype), size_of(record.parameter_dtype))
                              : axes_[static_cast<std::size_t>(f.demand)][static_cast<std::size_t>(f.record)].unit;
        return item * readers_of(f);
    }

    [[nodiscard]] bool owns_itself(const Fragment& f) const {
        const int self = demands_[static_cast<std::size_t>(f.demand)].self;
        const std::vector<int>& ranks = index_.sets()[f.owners];
        return self >= 0 && std::binary_search(ranks.begin(), ranks.end(), self);
    }

    void add_pieces_of(const std::vector<Chunk>& chunks, std::size_t demand) {
        for (const Chunk& chunk : chunks) {
            std::vector<int> owners = chunk.alternates;
            owners.push_back(chunk.owner);
            std::sort(owners.begin(), owners.end());
            std::vector<int> mirrors = chunk.mirrors;
            mirrors.push_back(chunk.owner);
            std::sort(mirrors.begin(), mirrors.end());
            const OwnerSetId set = index_.sets().intern(std::move(owners));
            const OwnerSetId mirror_set = index_.sets().intern(std::move(mirrors));
            for (const Piece& piece : chunk.pieces) {
                pieces_[demand].push_back({piece, position_[static_cast<std::size_t>(chunk.group)], chunk.group,
                                           chunk.owner, set, chunk.path, mirror_set});
            }
        }
    }

    [[nodiscard]] std::vector<Chunk> in_reading_order(const std::vector<Chunk>& kept, std::vector<Chunk> made) const {
        std::vector<Chunk> out;
        std::merge(kept.begin(), kept.end(), std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()),
                   std::back_inserter(out), [&](const Chunk& a, const Chunk& b) {
                       return position_[static_cast<std::size_t>(a.group)] <
                              position_[static_cast<std::size_t>(b.group)];
                   });
        return out;
    }

    // Bytes that each owner already sends.
    [[nodiscard]] std::vector<double> loads_of(std::span<const KeptRoute> kept) const {
        std::vector<double> loads(owners_.size(), 0.0);
        for (std::size_t d = 0; d < kept.size(); ++d) {
            const auto readers = static_cast<double>(std::max<std::size_t>(1, demands_[d].workers.size()));
            for (const std::vector<Chunk>* chunks : {&kept[d].whole, &kept[d].cut}) {
                for (const Chunk& chunk : *chunks) {
                    for (const Piece& piece : chunk.pieces) {
                        loads[static_cast<std::size_t>(chunk.owner)] +=
                            readers * static_cast<double>(piece.wire_bytes());
                    }
                }
            }
        }
        return loads;
    }

    [[nodiscard]] bool maps(const Fragment& f, int owner) const {
        const std::vector<int>& mapped = demands_[static_cast<std::size_t>(f.demand)].mapped_owners;
        return std::binary_search(mapped.begin(), mapped.end(), owner);
    }

    // Decides the owner of every byte, in the order in which groups are read.
    void hand_out(std::span<const KeptRoute> kept) {
        pieces_.resize(demands_.size());
        std::vector<std::size_t> least(demands_.size(), 0);
        for (const std::vector<Fragment>& group : fragments_) {
            for (const Fragment& f : group) {
                ++least[static_cast<std::size_t>(f.demand)];
            }
        }
        for (std::size_t d = 0; d < demands_.size(); ++d) {
            pieces_[d].reserve(least[d]);
        }
        std::vector<double> bytes_of_set(index_.sets().size(), 0.0);
        double total = 0;
        for (const std::vector<Fragment>& group : fragments_) {
            for (const Fragment& f : group) {
                if (!owns_itself(f)) {
                    const double bytes = static_cast<double>(f.walk.items() * sent_per_item(f));
                    bytes_of_set[static_cast<std::size_t>(f.owners)] += bytes;
                    total += bytes;
                }
            }
        }
        Balancer balancer(index_.sets(), bytes_of_set, loads_of(kept));
        const auto portion = static_cast<std::int64_t>(total / kPortions /
                                                       static_cast<double>(std::max<std::size_t>(1, owners_.size())));
        for (std::vector<Fragment>& group : fragments_) {
            for (Fragment& f : group) {
                if (owns_itself(f)) {
                    emit(f, demands_[static_cast<std::size_t>(f.demand)].self, f.walk);
                } else {
                    spread(f, portion, balancer);
                }
            }
            group = {};
        }
    }

    // Gives the fragment to owners, in portions of about `portion` bytes or more.
    void spread(Fragment& f, std::int64_t portion, Balancer& balancer) {
        const std::int64_t per_item = sent_per_item(f);
        const std::int64_t least = std::clamp(portion, kLeastPortion * readers_of(f),
                                              std::max(kLeastPortion, options_.chunk_bytes) * readers_of(f));
        balancer.announce(f.owners, static_cast<double>(f.walk.items() * per_item));
        open_.clear();
        open_.push_back(std::move(f.walk));
        while (!open_.empty()) {
            SourceWalk walk = std::move(open_.back());
            open_.pop_back();
            const std::int64_t bytes = walk.items() * per_item;
            const Balancer::Pick pick = balancer.pick(f.owners);
            const std::int64_t owed = std::max(least, static_cast<std::int64_t>(pick.owed));
            if (bytes - owed < least || index_.sets()[f.owners].size() == 1) {
                balancer.assign(pick.owner, static_cast<double>(bytes));
                emit(f, pick.owner, walk);
                continue;
            }
            // The rest of a row comes back last, so that it is handed out before the rows after it.
            const SourceWalk part =
                take_items(std::move(walk), owed / per_item, std::max<std::int64_t>(1, least / per_item), open_);
            balancer.assign(pick.owner, static_cast<double>(part.items() * per_item));
            emit(f, pick.owner, part);
        }
    }

    void emit(const Fragment& f, int owner, const SourceWalk& walk) {
        const CopyRecord& record = record_of(f);
        const CatalogueTensor& tensor = catalogue_[record.tensor];
        const auto holder = std::lower_bound(f.cell->owners.begin(), f.cell->owners.end(), owner,
                                             [](const CellOwner& o, int rank) { return o.rank < rank; });
        even_.clear();
        unfold(walk, *holder->region, even_);
        for (const SourceWalk& even : even_) {
            RoutedPiece routed;
            routed.piece =
                piece_from(record, axes_[static_cast<std::size_t>(f.demand)][static_cast<std::size_t>(f.record)],
                           tensor.shape.size(), *holder->region, even);
            routed.group = tensor.group;
            routed.group_position = f.group_position;
            routed.owner = owner;
            routed.owners = f.owners;
            routed.mirrors = index_.sets().intersect(holder->mirrors, f.owners);
            routed.path = owner == demands_[static_cast<std::size_t>(f.demand)].self
                              ? Path::kMapped
                              : choose_path(routed.piece, options_, maps(f, owner));
            pieces_[static_cast<std::size_t>(f.demand)].push_back(std::move(routed));
        }
    }

    const Catalogue& catalogue_;
    std::span<const Ownership> owners_;
    std::span<const DemandRequest> demands_;
    RouteOptions options_;
    OwnerIndex index_;
    std::vector<std::int32_t> position_;            // of a group in the group order
    std::vector<std::vector<SourceAxes>> axes_;     // by demand, record
    std::vector<std::vector<Fragment>> fragments_;  // by position of the group
    std::vector<SourceWalk> open_;
    std::vector<SourceWalk> even_;
    std::vector<std::vector<RoutedPiece>> pieces_;  // by demand
};

Status check_regions(const Catalogue& catalogue, std::span<const Ownership> owners) {
    for (std::size_t rank = 0; rank < owners.size(); ++rank) {
        for (const OwnedRegion& region : owners[rank].regions) {
            const bool known = region.tensor >= 0 && static_cast<std::size_t>(region.tensor) < catalogue.size();
            const auto refuse = [&](const char* what) {
                return plan_refused(
                    fmt::format("trainer rank {} declares {} of tensor {}; every rank must use the same catalogue",
                                rank, what, known ? catalogue[region.tensor].name : std::to_string(region.tensor)));
            };
            if (!known) {
                return refuse("a region");
            }
            const Dims& shape = catalogue[region.tensor].shape;
            if (region.begin.size() != shape.size() || region.end.size() != shape.size() ||
                region.strides.size() != shape.size()) {
                return refuse("a region of another number of axes");
            }
            for (std::size_t d = 0; d < shape.size(); ++d) {
                if (region.begin[d] < 0 || region.end[d] < region.begin[d] || region.end[d] > shape[d]) {
                    return refuse("a region outside the shape");
                }
            }
            if (!valid_fold(region)) {
                return refuse("a fold that does not divide its region");
            }
        }
    }
    return ok_status();
}

// What converts is never mapped; everything else must be when it was asked for.
Result<Plan> checked(Result<Plan> plan, const RouteOptions& options) {
    if (!plan.ok() || options.path != RouteOptions::PathChoice::kMapped) {
        return plan;
    }
    for (const Route& route : plan->routes) {
        for (const Chunk& chunk : route.chunks) {
            const bool converts = std::any_of(chunk.pieces.begin(), chunk.pieces.end(),
                                              [](const Piece& piece) { return piece.converts(); });
            if (chunk.path != Path::kMapped && !converts) {
                return plan_refused(fmt::format(
                    "worker {} cannot map the memory of trainer {}; run both on one host with SLUICE_MAPPED=on, or "
                    "choose another path than mapped",
                    route.workers.empty() ? 0 : route.workers.front(), chunk.owner));
            }
        }
    }
    return plan;
}

}  // namespace

Result<Plan> route(const Catalogue& catalogue, std::span<const Ownership> owners,
                   std::span<const DemandRequest> demands, const RouteOptions& options) {
    if (options.chunk_bytes < kMinChunkBytes) {
        return invalid_argument(
            fmt::format("chunk size of {} bytes is too small; use at least {}", options.chunk_bytes, kMinChunkBytes));
    }
    SLUICE_RETURN_IF_ERROR(check_regions(catalogue, owners));
    SLUICE_RETURN_IF_ERROR(check_stage_replicas(catalogue, owners));
    return checked(Router(catalogue, owners, demands, options).run({}), options);
}

Result<Plan> route_rest(const Catalogue& catalogue, std::span<const Ownership> owners,
                        std::span<const DemandRequest> changed, std::span<const KeptRoute> kept,
                        const RouteOptions& options) {
    return checked(Router(catalogue, owners, changed, options).run(kept), options);
}

}  // namespace sluice

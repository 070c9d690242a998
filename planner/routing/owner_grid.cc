#include "planner/routing/owner_grid.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sluice {

OwnerSetId OwnerSets::intern(std::vector<int> ranks) {
    const auto next = static_cast<OwnerSetId>(sets_.size());
    const auto [it, added] = ids_.try_emplace(std::move(ranks), next);
    if (added) {
        sets_.push_back(&it->first);
    }
    return it->second;
}

OwnerSetId OwnerSets::intersect(OwnerSetId a, OwnerSetId b) {
    if (a == b) {
        return a;
    }
    const auto [low, high] = std::minmax(a, b);
    const std::uint64_t key = static_cast<std::uint64_t>(low) << 32 | static_cast<std::uint32_t>(high);
    if (const auto found = intersections_.find(key); found != intersections_.end()) {
        return found->second;
    }
    std::vector<int> common;
    std::set_intersection((*this)[a].begin(), (*this)[a].end(), (*this)[b].begin(), (*this)[b].end(),
                          std::back_inserter(common));
    return intersections_[key] = intern(std::move(common));
}

OwnerIndex::OwnerIndex(const Catalogue& catalogue, std::span<const Ownership> owners)
    : catalogue_(catalogue), first_box_(catalogue.size() + 1, 0), grid_of_(catalogue.size(), -1) {
    for (const Ownership& owner : owners) {
        for (const OwnedRegion& region : owner.regions) {
            ++first_box_[static_cast<std::size_t>(region.tensor) + 1];
        }
    }
    for (std::size_t t = 0; t < catalogue.size(); ++t) {
        first_box_[t + 1] += first_box_[t];
    }
    boxes_.resize(first_box_.back());
    std::vector<std::size_t> next(first_box_.begin(), first_box_.end() - 1);
    for (std::size_t rank = 0; rank < owners.size(); ++rank) {
        for (const OwnedRegion& region : owners[rank].regions) {
            boxes_[next[static_cast<std::size_t>(region.tensor)]++] = {static_cast<int>(rank), &region};
        }
    }
}

std::span<const CellOwner> OwnerIndex::boxes(TensorId tensor) const {
    const auto t = static_cast<std::size_t>(tensor);
    return std::span(boxes_).subspan(first_box_[t], first_box_[t + 1] - first_box_[t]);
}

const TensorGrid& OwnerIndex::grid(TensorId tensor) {
    std::int32_t& number = grid_of_[static_cast<std::size_t>(tensor)];
    if (number >= 0) {
        return *grids_[static_cast<std::size_t>(number)];
    }
    number = static_cast<std::int32_t>(grids_.size());
    TensorGrid& grid = *grids_.emplace_back(std::make_unique<TensorGrid>());
    const Dims& shape = catalogue_[tensor].shape;
    const std::span<const CellOwner> offered = boxes(tensor);
    grid.offered = !offered.empty();

    std::size_t cells = 1;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        std::vector<std::int64_t> cuts{0, shape[axis]};
        for (const CellOwner& box : offered) {
            cuts.push_back(box.region->begin[axis]);
            cuts.push_back(box.region->end[axis]);
        }
        std::sort(cuts.begin(), cuts.end());
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
        cells *= cuts.size() - 1;
        grid.cuts.push_back(std::move(cuts));
    }
    grid.cells.resize(cells);

    for (const CellOwner& box : offered) {
        // The cells below a box are a box of intervals: walk it like an odometer.
        Dims first(shape.size(), 0);
        Dims last(shape.size(), 0);
        bool empty = false;
        for (std::size_t axis = 0; axis < shape.size(); ++axis) {
            const auto& cuts = grid.cuts[axis];
            first[axis] = std::lower_bound(cuts.begin(), cuts.end(), box.region->begin[axis]) - cuts.begin();
            last[axis] = std::lower_bound(cuts.begin(), cuts.end(), box.region->end[axis]) - cuts.begin();
            empty = empty || first[axis] == last[axis];
        }
        if (empty) {
            continue;
        }
        Dims at = first;
        while (true) {
            std::size_t cell = 0;
            for (std::size_t axis = 0; axis < shape.size(); ++axis) {
                cell = cell * (grid.cuts[axis].size() - 1) + static_cast<std::size_t>(at[axis]);
            }
            std::vector<CellOwner>& owners = grid.cells[cell].owners;
            if (owners.empty() || owners.back().rank != box.rank) {
                owners.push_back(box);
            }
            std::size_t axis = shape.size();
            while (axis-- > 0) {
                if (++at[axis] < last[axis]) {
                    break;
                }
                at[axis] = first[axis];
            }
            if (axis == static_cast<std::size_t>(-1)) {
                break;
            }
        }
    }
    for (TensorGrid::Cell& cell : grid.cells) {
        std::vector<int> ranks;
        for (const CellOwner& owner : cell.owners) {
            ranks.push_back(owner.rank);
        }
        cell.set = sets_.intern(std::move(ranks));
        for (CellOwner& owner : cell.owners) {
            if (owner.mirrors != 0) {
                continue;
            }
            std::vector<int> mirrors;
            for (const CellOwner& other : cell.owners) {
                if (*other.region == *owner.region) {
                    mirrors.push_back(other.rank);
                }
            }
            const OwnerSetId set = sets_.intern(std::move(mirrors));
            for (CellOwner& other : cell.owners) {
                if (*other.region == *owner.region) {
                    other.mirrors = set;
                }
            }
        }
    }
    return grid;
}

}  // namespace sluice

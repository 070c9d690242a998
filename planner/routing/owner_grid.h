#pragma once

#include "planner/catalogue.h"
#include "planner/ownership.h"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace sluice {

/// Number of a set of owners in OwnerSets.
using OwnerSetId = std::int32_t;

/// Interned sets of trainer ranks. Set 0 is the empty one.
class OwnerSets {
public:
    OwnerSets() { intern({}); }

    /// `ranks` must be sorted and distinct.
    OwnerSetId intern(std::vector<int> ranks);
    OwnerSetId intersect(OwnerSetId a, OwnerSetId b);
    [[nodiscard]] const std::vector<int>& operator[](OwnerSetId id) const {
        return *sets_[static_cast<std::size_t>(id)];
    }
    [[nodiscard]] std::size_t size() const { return sets_.size(); }

private:
    std::map<std::vector<int>, OwnerSetId> ids_;
    std::vector<const std::vector<int>*> sets_;
    std::unordered_map<std::uint64_t, OwnerSetId> intersections_;
};

/// An owner and the box of its memory that covers a cell.
struct CellOwner {
    int rank = 0;
    const OwnedRegion* region = nullptr;
    OwnerSetId mirrors = 0;  ///< In a cell: the ranks, this one included, whose boxes are equal to this one.
};

/// A checkpoint tensor cut at the borders of all boxes that owners offer: every cell is covered by a box or not touched by it.
struct TensorGrid {
    struct Cell {
        std::vector<CellOwner> owners;  // by rank, one box each
        OwnerSetId set = 0;
    };
    std::vector<std::vector<std::int64_t>> cuts;  // per axis: 0, borders, extent
    std::vector<Cell> cells;                      // row-major over the intervals
    bool offered = false;                         // anybody offers any part
};

/// Finds the owners of any part of any tensor. Keeps pointers into `owners`, which must outlive it.
class OwnerIndex {
public:
    OwnerIndex(const Catalogue& catalogue, std::span<const Ownership> owners);

    /// The grid of a tensor; made when first asked for. Its sets are interned in `sets()`.
    const TensorGrid& grid(TensorId tensor);
    OwnerSets& sets() { return sets_; }
    [[nodiscard]] const OwnerSets& sets() const { return sets_; }
    /// All boxes that are offered of a tensor, by rank.
    [[nodiscard]] std::span<const CellOwner> boxes(TensorId tensor) const;

private:
    const Catalogue& catalogue_;
    std::vector<CellOwner> boxes_;        // by tensor, then rank
    std::vector<std::size_t> first_box_;  // by tensor
    std::vector<std::int32_t> grid_of_;   // by tensor; -1 = not made
    std::vector<std::unique_ptr<TensorGrid>> grids_;
    OwnerSets sets_;
};

}  // namespace sluice

#pragma once

#include "planner/routing/owner_grid.h"

#include <cstdint>
#include <vector>

namespace sluice {

/// Spreads bytes over owners. First the totals per set of owners are spread as evenly as ownership permits (fractions); then
/// work is handed out in order, each time to the owner that is furthest behind its share, so that every stretch of the
/// order is balanced, too. Deterministic.
class Balancer {
public:
    /// `bytes_of_set[s]`: all that must come from owners of set s. `loads`: what each owner sends anyway.
    Balancer(const OwnerSets& sets, const std::vector<double>& bytes_of_set, std::vector<double> loads);

    /// `bytes` of set `set` come next: every owner of the set is now owed its share of it.
    void announce(OwnerSetId set, double bytes);
    /// The owner of the set to which most is owed, and how much.
    struct Pick {
        int owner;
        double owed;
    };
    [[nodiscard]] Pick pick(OwnerSetId set) const;
    void assign(int owner, double bytes) { owed_[static_cast<std::size_t>(owner)] -= bytes; }

    /// Load of the busiest owner if shares could be met exactly.
    [[nodiscard]] double busiest() const;

private:
    const OwnerSets& sets_;
    std::vector<std::vector<double>> share_;  // by set, parallel to its ranks: fraction of the set's bytes
    std::vector<double> planned_;             // by owner
    std::vector<double> owed_;                // by owner
};

}  // namespace sluice

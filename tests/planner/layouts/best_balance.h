#pragma once

#include "planner/catalogue.h"
#include "planner/ownership.h"
#include "planner/plan.h"
#include "planner/router.h"

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace sluice::test {

/// Which ranks can serve which elements of a catalogue. Written apart from the router.
class OwnerMap {
public:
    OwnerMap(const Catalogue& catalogue, std::span<const Ownership> owners);

    /// Bytes on the wire by set of ranks that can serve them. What replicas share is sent to each of them by one owner.
    [[nodiscard]] std::map<std::vector<int>, std::int64_t> work(std::span<const DemandRequest> demands) const;
    [[nodiscard]] int owners() const { return owners_; }

private:
    struct Tensor {
        std::vector<std::vector<std::int64_t>> cuts;  // by axis: borders of intervals
        std::vector<std::int32_t> cells;              // set of each cell, row-major over the intervals
    };
    void add_record(const CopyRecord& record, std::int64_t workers, std::vector<std::int64_t>& bytes) const;

    const Catalogue& catalogue_;
    int owners_;
    std::vector<Tensor> tensors_;
    std::vector<std::vector<int>> sets_;
};

/// The least load that the busiest rank can have, over all ways to hand the work out (also in fractions): found by
/// maximal flows from sets to ranks. Exact to 0.05 %, and never above.
double least_busiest(const std::map<std::vector<int>, std::int64_t>& work, int owners);

/// Bytes that the busiest owner sends to all workers.
std::int64_t busiest(const Plan& plan, int owners);

}  // namespace sluice::test

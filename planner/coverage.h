#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/ids.h"
#include "runtime/base/shape.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

/// What is wrong with one parameter, or what nobody reads of one tensor.
struct CoverageGap {
    std::int32_t id = 0;        ///< ParameterId or TensorId.
    std::int64_t elements = 0;  ///< How many.
    Dims first;                 ///< Coordinates of the first one.
};

/// How a demand's records and fills cover its parameters. Proven by the union of the boxes that are written.
struct DemandCoverage {
    std::int64_t holes = 0;                 ///< Elements that nothing writes.
    std::int64_t overlaps = 0;              ///< Elements that are written more than once.
    std::int64_t padding_bytes = 0;         ///< Bytes that the loader fills itself.
    std::vector<CoverageGap> hole_gaps;     // by parameter
    std::vector<CoverageGap> overlap_gaps;  // by parameter
    /// Ok, or plan refused: the first fault with parameter and coordinates. Also for boxes that leave their parameter,
    /// and for writes to a parameter that is declared not from the trainer.
    Status status;
};

DemandCoverage prove_coverage(const Demand& demand);

/// What all demands together read of the checkpoint.
struct SourceCoverage {
    std::vector<TensorId> unread;  ///< Tensors of which nobody reads anything; those without elements are not listed.
    std::vector<CoverageGap> partly_read;  ///< Tensors of which somebody reads something, and nobody the rest.
};

SourceCoverage source_coverage(const Catalogue& catalogue, std::span<const Demand* const> demands);

}  // namespace sluice

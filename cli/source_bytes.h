#pragma once

#include "cli/weight_values.h"
#include "planner/catalogue.h"
#include "planner/ids.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::cli {

/// Any bytes of full tensors as they are in one version. Not thread-safe.
class SourceBytes {
public:
    SourceBytes(const Catalogue& catalogue, const WeightValues& values, std::uint64_t version)
        : catalogue_(catalogue), values_(values), version_(version) {}

    /// Bytes [begin, begin + size) of the full tensor; valid until the next call. A view as another dtype may start inside an element.
    const std::byte* read(TensorId tensor, std::int64_t begin, std::int64_t size);

private:
    const Catalogue& catalogue_;
    const WeightValues& values_;
    std::uint64_t version_;
    std::vector<std::byte> bytes_;
};

}  // namespace sluice::cli

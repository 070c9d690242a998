#include "cli/trainer_weights.h"

#include "runtime/base/strided_copy.h"

namespace sluice::cli {

Result<TrainerWeights> TrainerWeights::allocate(const Catalogue& catalogue, const Ownership& stored) {
    const std::int64_t bytes = stored.segment_bytes.empty() ? 0 : stored.segment_bytes.front();
    SLUICE_ASSIGN_OR_RETURN(SharedBuffer memory, SharedBuffer::allocate(bytes));
    return TrainerWeights(catalogue, stored, std::move(memory));
}

void TrainerWeights::write_version(const WeightValues& values, std::uint64_t version) {
    for (const OwnedRegion& region : stored_->regions) {
        const CatalogueTensor& tensor = (*catalogue_)[region.tensor];
        const std::int64_t item = size_of(tensor.dtype);
        const StridedCopy runs = coalesce(region_copy(region, tensor.shape, item));
        for_each_item(runs, [&](std::int64_t src, std::int64_t dst) {
            values.read(region.tensor, src / item, runs.item / item, static_cast<std::int64_t>(version),
                        memory_.buffer().data() + dst);
        });
    }
}

}  // namespace sluice::cli

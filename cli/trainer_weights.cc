#include "cli/trainer_weights.h"

#include "runtime/base/strided_copy.h"

#include <utility>
#include <vector>

namespace sluice::cli {

Result<TrainerWeights> TrainerWeights::allocate(const Catalogue& catalogue, const Ownership& stored,
                                                const WeightValues& values, Device* device, bool mappable) {
    const std::int64_t bytes = stored.segment_bytes.empty() ? 0 : stored.segment_bytes.front();
    TrainerWeights weights(catalogue, stored, values, device);
    if (device == nullptr && mappable) {
        SLUICE_ASSIGN_OR_RETURN(weights.shared_, SharedBuffer::allocate(bytes));
        return weights;
    }
    if (device == nullptr) {
        SLUICE_ASSIGN_OR_RETURN(weights.own_, Buffer::allocate(bytes, MemoryKind::kHost));
        return weights;
    }
    SLUICE_ASSIGN_OR_RETURN(weights.own_, device->allocate(bytes));
    if (values.generated()) {
        std::vector<DeviceValues> regions;
        for (const OwnedRegion& region : stored.regions) {
            const CatalogueTensor& tensor = catalogue[region.tensor];
            regions.push_back({coalesce(region_copy(region, tensor.shape, size_of(tensor.dtype))), weights.own_->data(),
                               values.name_hash_of(region.tensor), tensor.dtype});
        }
        SLUICE_ASSIGN_OR_RETURN(weights.generate_, device->compile_values(regions));
    }
    return weights;
}

WeightSource::Segment TrainerWeights::segment() const {
    const auto memory = bytes();
    return {memory.data(), static_cast<std::int64_t>(memory.size()),
            device_ == nullptr ? MemoryKind::kHost : MemoryKind::kCuda,
            shared_ ? std::optional(shared_->handle()) : std::nullopt};
}

Status TrainerWeights::write_version(std::uint64_t version) {
    if (device_ == nullptr) {
        write_version(version, bytes().data());
        return ok_status();
    }
    if (generate_ != nullptr) {
        return device_->fill_values(*generate_, static_cast<std::int64_t>(version), 0);
    }
    SLUICE_ASSIGN_OR_RETURN(const Buffer made,
                            Buffer::allocate(static_cast<std::int64_t>(own_->size()), MemoryKind::kHost));
    write_version(version, made.data());
    return device_->copy(own_->data(), made.data(), made.size(), 0);
}

void TrainerWeights::write_version(std::uint64_t version, std::byte* to) const {
    for (const OwnedRegion& region : stored_->regions) {
        const CatalogueTensor& tensor = (*catalogue_)[region.tensor];
        const std::int64_t item = size_of(tensor.dtype);
        const StridedCopy runs = coalesce(region_copy(region, tensor.shape, item));
        for_each_item(runs, [&](std::int64_t src, std::int64_t dst) {
            values_->read(region.tensor, src / item, runs.item / item, static_cast<std::int64_t>(version), to + dst);
        });
    }
}

}  // namespace sluice::cli

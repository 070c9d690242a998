#include "cli/verify_device.h"

#include "runtime/base/strided_copy.h"

#include <algorithm>
#include <vector>

namespace sluice::cli {

// True when everything is right, false when something is not or cannot be told.
Result<bool> ParameterVerifier::right_on_device(std::uint64_t version) {
    const ParameterStore& store = parameters_.store();
    const bool converts = std::any_of(demand_.records.begin(), demand_.records.end(), [&](const CopyRecord& record) {
        return record.converts() && !store.buffered(record.parameter);
    });
    if (converts || !demand_.fills.empty() || !values_.generated()) {
        return false;
    }
    if (program_ == nullptr) {
        std::vector<DeviceValues> regions;
        for (const CopyRecord& record : demand_.records) {
            if (!store.buffered(record.parameter)) {
                regions.push_back({coalesce(record.copy), store.address(record.parameter),
                                   values_.name_hash_of(record.tensor), catalogue_[record.tensor].dtype});
            }
        }
        SLUICE_ASSIGN_OR_RETURN(program_, device_->compile_values(regions));
    }
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t different,
                            device_->count_other_values(*program_, static_cast<std::int64_t>(version), 0));
    return different == 0;
}

FullVerification ParameterVerifier::verify(const Route& route, std::uint64_t version) {
    if (device_ != nullptr) {
        const auto right = right_on_device(version);
        if (!right.ok()) {
            return {0, right.status()};
        }
        if (*right) {
            return {};
        }
    }
    const auto host = parameters_.on_host();
    if (!host.ok()) {
        return {0, host.status()};
    }
    return verify_full(catalogue_, demand_, route, host->store, values_, version);
}

}  // namespace sluice::cli

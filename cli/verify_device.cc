#include "cli/verify_device.h"

#include "runtime/base/strided_copy.h"

#include <algorithm>
#include <vector>

namespace sluice::cli {
namespace {

/// True when everything is right, false when something is not or cannot be told.
Result<bool> right_on_device(const Catalogue& catalogue, const Demand& demand, const WorkerParameters& parameters,
                             const WeightValues& values, std::uint64_t version, Device& device) {
    const bool converts = std::any_of(demand.records.begin(), demand.records.end(), [&](const CopyRecord& record) {
        return record.converts() && !parameters.store().buffered(record.parameter);
    });
    if (converts || !demand.fills.empty() || !values.generated()) {
        return false;
    }
    std::vector<DeviceValues> regions;
    for (const CopyRecord& record : demand.records) {
        if (parameters.store().buffered(record.parameter)) {
            continue;
        }
        regions.push_back({coalesce(record.copy), parameters.store().address(record.parameter),
                           values.name_hash_of(record.tensor), catalogue[record.tensor].dtype});
    }
    SLUICE_ASSIGN_OR_RETURN(const auto program, device.compile_values(regions));
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t different,
                            device.count_other_values(*program, static_cast<std::int64_t>(version), 0));
    return different == 0;
}

}  // namespace

FullVerification verify_parameters(const Catalogue& catalogue, const Demand& demand, const Route& route,
                                   const WorkerParameters& parameters, const WeightValues& values,
                                   std::uint64_t version, Device* device) {
    if (device != nullptr) {
        const auto right = right_on_device(catalogue, demand, parameters, values, version, *device);
        if (!right.ok()) {
            return {0, right.status()};
        }
        if (*right) {
            return {};
        }
    }
    const auto host = parameters.on_host();
    if (!host.ok()) {
        return {0, host.status()};
    }
    return verify_full(catalogue, demand, route, host->store, values, version);
}

}  // namespace sluice::cli

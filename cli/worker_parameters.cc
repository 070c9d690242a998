#include "cli/worker_parameters.h"

#include "runtime/base/strided_copy.h"
#include "runtime/services/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sluice::cli {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr auto kPoison = std::byte{0xAB};

}  // namespace

Result<WorkerParameters> WorkerParameters::allocate(const Demand& demand) {
    ParameterStore store;
    std::int64_t bytes = 0;
    for (const Parameter& parameter : demand.parameters) {
        store.places.push_back({0, bytes});
        bytes += (parameter.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
    SLUICE_ASSIGN_OR_RETURN(Buffer memory, Buffer::allocate(bytes, MemoryKind::kHost));
    store.blocks.push_back({memory.data(), bytes, MemoryKind::kHost});
    return WorkerParameters(demand, std::move(memory), std::move(store));
}

void WorkerParameters::poison() {
    const auto& kept = demand_->not_from_trainer;
    for (std::size_t i = 0; i < demand_->parameters.size(); ++i) {
        const auto id = static_cast<ParameterId>(i);
        if (std::find(kept.begin(), kept.end(), id) == kept.end()) {
            std::fill_n(store_.address(id), demand_->parameters[i].bytes(), kPoison);
        }
    }
    for (const ZeroFill& fill : demand_->fills) {
        const StridedCopy box = coalesce(fill.box);
        for_each_item(box, [&](std::int64_t, std::int64_t dst) {
            std::fill_n(store_.address(fill.parameter) + dst, box.item, std::byte{0});
        });
    }
}

Status WorkerParameters::dump(const std::string& path, const std::map<std::string, std::string>& metadata) const {
    std::vector<SafetensorsTensor> tensors;
    for (std::size_t i = 0; i < demand_->parameters.size(); ++i) {
        const Parameter& parameter = demand_->parameters[i];
        tensors.push_back({parameter.name,
                           parameter.dtype,
                           parameter.shape,
                           {store_.address(static_cast<ParameterId>(i)), static_cast<std::size_t>(parameter.bytes())}});
    }
    return write_safetensors(path, tensors, {metadata.begin(), metadata.end()});
}

}  // namespace sluice::cli

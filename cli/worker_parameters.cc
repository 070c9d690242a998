#include "cli/worker_parameters.h"

#include "runtime/base/strided_copy.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sluice::cli {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr auto kPoison = std::byte{0xAB};

}  // namespace

Result<WorkerParameters> WorkerParameters::allocate(const Demand& demand, Device* device,
                                                    const std::vector<ParameterId>& buffered) {
    ParameterStore store;
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < demand.parameters.size(); ++i) {
        if (std::find(buffered.begin(), buffered.end(), static_cast<ParameterId>(i)) != buffered.end()) {
            store.places.push_back(ParameterStore::in_layer_buffer());
            continue;
        }
        const Parameter& parameter = demand.parameters[i];
        store.places.push_back({0, bytes});
        bytes += (parameter.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
    SLUICE_ASSIGN_OR_RETURN(Buffer memory,
                            device != nullptr ? device->allocate(bytes) : Buffer::allocate(bytes, MemoryKind::kHost));
    store.blocks.push_back({memory.data(), bytes, memory.kind()});
    WorkerParameters parameters(demand, std::move(memory), std::move(store), device);
    if (device != nullptr) {
        SLUICE_RETURN_IF_ERROR(device->fill(parameters.memory_.data(), std::byte{0}, parameters.memory_.size(), 0));
    }
    return parameters;
}

Status WorkerParameters::poison() {
    if (device_ == nullptr) {
        poison(store_);
        return ok_status();
    }
    if (demand_->fills.empty() && demand_->not_from_trainer.empty()) {
        return device_->fill(memory_.data(), kPoison, memory_.size(), 0);
    }
    SLUICE_ASSIGN_OR_RETURN(const OnHost host, on_host());
    poison(host.store);
    return device_->copy(memory_.data(), host.copy->data(), memory_.size(), 0);
}

Result<WorkerParameters::OnHost> WorkerParameters::on_host() const {
    OnHost out{std::nullopt, store_};
    if (device_ != nullptr) {
        SLUICE_ASSIGN_OR_RETURN(out.copy,
                                Buffer::allocate(static_cast<std::int64_t>(memory_.size()), MemoryKind::kHost));
        SLUICE_RETURN_IF_ERROR(device_->copy(out.copy->data(), memory_.data(), memory_.size(), 0));
        out.store.blocks.front() = {out.copy->data(), static_cast<std::int64_t>(out.copy->size()), MemoryKind::kHost};
    }
    return out;
}

void WorkerParameters::poison(const ParameterStore& store) const {
    const auto& kept = demand_->not_from_trainer;
    for (std::size_t i = 0; i < demand_->parameters.size(); ++i) {
        const auto id = static_cast<ParameterId>(i);
        if (!store.buffered(id) && std::find(kept.begin(), kept.end(), id) == kept.end()) {
            std::fill_n(store.address(id), demand_->parameters[i].bytes(), kPoison);
        }
    }
    for (const ZeroFill& fill : demand_->fills) {
        const StridedCopy box = coalesce(fill.box);
        for_each_item(box, [&](std::int64_t, std::int64_t dst) {
            std::fill_n(store.address(fill.parameter) + dst, box.item, std::byte{0});
        });
    }
}

std::vector<SafetensorsTensor> WorkerParameters::tensors(const OnHost& host) const {
    std::vector<SafetensorsTensor> tensors;
    for (std::size_t i = 0; i < demand_->parameters.size(); ++i) {
        const auto id = static_cast<ParameterId>(i);
        const Parameter& parameter = demand_->parameters[i];
        if (!host.store.buffered(id)) {
            tensors.push_back({parameter.name,
                               parameter.dtype,
                               parameter.shape,
                               {host.store.address(id), static_cast<std::size_t>(parameter.bytes())}});
        }
    }
    return tensors;
}

}  // namespace sluice::cli

#include "planner/loaders/load_context.h"

#include <fmt/format.h>

namespace sluice {

std::int64_t Split::piece(std::int64_t size, std::string_view what) const {
    if (size % count != 0) {
        refuse(
            fmt::format("{} cannot be cut into {} equal pieces; choose a parallel size that divides it", what, count));
    }
    return size / count;
}

namespace {

DType dtype_of(const ModelConfig& config) {
    const Result<DType> dtype = config.dtype();
    if (!dtype.ok()) {
        throw RecordingRefused(dtype.status());
    }
    return *dtype;
}

}  // namespace

LoadContext::LoadContext(Recorder& recorder, const ModelConfig& config, const WorkerLayout& layout, int pool_rank)
    : recorder_(recorder), config_(config), layout_(layout), pool_rank_(pool_rank), dtype_(dtype_of(config)) {}

std::int64_t LoadContext::integer(std::string_view key) const {
    const Result<std::int64_t> value = config_.integer(key);
    if (!value.ok()) {
        throw RecordingRefused(value.status());
    }
    return *value;
}

const std::vector<std::int64_t>* LoadContext::expert_slots(std::string_view path, std::int64_t experts,
                                                           std::int64_t slots) {
    const int layer = group_of(path, catalogue().groups() - 2) - 1;
    const auto found = layout_.expert_map.layers.find(layer);
    if (found == layout_.expert_map.layers.end()) {
        return nullptr;
    }
    if (const Status fits = check_expert_slots(found->second, layer, experts, slots); !fits.ok()) {
        throw RecordingRefused(fits);
    }
    mapped_layers_.insert(layer);
    return &found->second;
}

void LoadContext::check_expert_map_used() const {
    for (const auto& [layer, slots] : layout_.expert_map.layers) {
        if (!mapped_layers_.contains(layer)) {
            throw RecordingRefused(
                invalid_argument(fmt::format("expert map: layer {} of this model has no routed experts", layer)));
        }
    }
}

RecordingTensor LoadContext::tensor(std::string_view name, const Dims& shape) const {
    RecordingTensor tensor = recorder_.tensor(name);
    if (tensor.sizes() != shape) {
        throw RecordingRefused(
            invalid_argument(fmt::format("checkpoint tensor {} has shape {}, but the config gives {}", name,
                                         to_string(tensor.sizes()), to_string(shape))));
    }
    return tensor;
}

}  // namespace sluice

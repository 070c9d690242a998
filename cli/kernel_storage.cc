#include "cli/kernel_storage.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace sluice::cli {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr auto kPoison = std::byte{0xAB};

/// Gives each tensor its place.
class Layout {
public:
    void add(std::string name, DType dtype, Dims shape) {
        KernelStorage::Tensor tensor{std::move(name), dtype, std::move(shape), bytes};
        bytes += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
        tensors.push_back(std::move(tensor));
    }
    std::vector<KernelStorage::Tensor> tensors;
    std::int64_t bytes = 0;
};

Dims scale_shape(const BlockQuantisation& job, const Dims& shape) {
    Dims scales = shape;
    scales[shape.size() - 2] = job.block_rows();
    scales[shape.size() - 1] = job.block_columns();
    return scales;
}

}  // namespace

Result<KernelStorage> KernelStorage::allocate(const Demand& demand, const ModelConfig& config, Device* device) {
    KernelFormat format = fp8_block_format(demand, config);
    if (format.quantised.empty()) {
        return invalid_argument(
            "--hook fp8-blocks: the model has no linear or expert weight in bf16, f16 or f32; leave the option out");
    }
    Layout layout;
    for (const ParameterId id : format.quantised) {
        const Parameter& parameter = demand.parameters[static_cast<std::size_t>(id)];
        SLUICE_ASSIGN_OR_RETURN(const BlockQuantisation job, quantisation_of(parameter));
        layout.add(parameter.name, DType::kF8E4M3, parameter.shape);
        layout.add(parameter.name + "_scale_inv", DType::kF32, scale_shape(job, parameter.shape));
    }
    for (const KernelFormat::LatentSplit& split : format.splits) {
        const Parameter& kv_b = demand.parameters[static_cast<std::size_t>(split.kv_b)];
        const std::string path = kv_b.name.substr(0, kv_b.name.rfind("kv_b_proj"));
        layout.add(path + "w_kc", kv_b.dtype, {split.heads, split.rank, split.nope});
        layout.add(path + "w_vc", kv_b.dtype, {split.heads, split.value, split.rank});
    }
    SLUICE_ASSIGN_OR_RETURN(Buffer memory, device != nullptr ? device->allocate(layout.bytes)
                                                             : Buffer::allocate(layout.bytes, MemoryKind::kHost));
    KernelStorage storage(std::move(format), std::move(layout.tensors), std::move(memory), device);

    const auto at = [&](const Tensor& tensor) { return storage.memory_.data() + tensor.offset; };
    std::vector<BlockQuantiseHook::Target> quantised;
    for (std::size_t i = 0; i < storage.format_.quantised.size(); ++i) {
        quantised.push_back({storage.format_.quantised[i], at(storage.values_of(i)),
                             reinterpret_cast<float*>(at(storage.scales_of(i)))});
    }
    std::vector<LatentSplitHook::Target> splits;
    for (std::size_t i = 0; i < storage.format_.splits.size(); ++i) {
        splits.push_back({storage.format_.splits[i], at(storage.keys_of(i)), at(storage.values_of_split(i))});
    }
    storage.quantise_ = std::make_unique<BlockQuantiseHook>(demand, std::move(quantised));
    storage.split_ = std::make_unique<LatentSplitHook>(demand, std::move(splits));
    return storage;
}

KernelStorage::KernelStorage(KernelFormat format, std::vector<Tensor> tensors, Buffer memory, Device* device)
    : format_(std::move(format)), tensors_(std::move(tensors)), memory_(std::move(memory)), device_(device) {}

Status KernelStorage::poison() {
    if (device_ != nullptr) {
        return device_->fill(memory_.data(), kPoison, memory_.size(), 0);
    }
    std::fill(memory_.bytes().begin(), memory_.bytes().end(), kPoison);
    return ok_status();
}

Result<std::vector<std::byte>> KernelStorage::on_host() const {
    std::vector<std::byte> copy(memory_.size());
    if (device_ != nullptr) {
        SLUICE_RETURN_IF_ERROR(device_->copy(copy.data(), memory_.data(), copy.size(), 0));
    } else {
        std::copy(memory_.bytes().begin(), memory_.bytes().end(), copy.begin());
    }
    return copy;
}

std::vector<SafetensorsTensor> KernelStorage::tensors(std::span<const std::byte> host) const {
    std::vector<SafetensorsTensor> out;
    for (const Tensor& tensor : tensors_) {
        out.push_back(
            {tensor.name, tensor.dtype, tensor.shape,
             host.subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.bytes()))});
    }
    return out;
}

}  // namespace sluice::cli

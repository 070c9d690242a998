#pragma once

#include "planner/demand.h"
#include "planner/model_config.h"
#include "runtime/base/status.h"
#include "runtime/services/buffer.h"
#include "runtime/services/device.h"
#include "runtime/services/safetensors.h"
#include "worker/block_quantise_hook.h"
#include "worker/kernel_format.h"
#include "worker/latent_split_hook.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sluice::cli {

/// The kernel-format tensors (fp8 by blocks) of a worker that has no engine around it, in one block of host memory, or of a device's, and the hooks that
/// write them.
class KernelStorage {
public:
    /// One tensor. `name` is what engines call it: the parameter's for values, with _scale_inv for scales, and w_kc and w_vc beside kv_b_proj.
    struct Tensor {
        std::string name;
        DType dtype = DType::kF32;
        Dims shape;
        std::int64_t offset = 0;

        [[nodiscard]] std::int64_t bytes() const { return num_elements(shape) * size_of(dtype); }
    };

    /// `demand` and `device` must outlive it. Refuses a model of which nothing can be quantised.
    static Result<KernelStorage> allocate(const Demand& demand, const ModelConfig& config, Device* device = nullptr);

    /// What lands in layer buffers.
    [[nodiscard]] const KernelFormat& format() const { return format_; }
    /// For Worker::Hooks::layers; they live as long as this, also when it is moved.
    [[nodiscard]] std::vector<LayerHook*> hooks() const { return {quantise_.get(), split_.get()}; }
    /// Fills all of it with 0xAB, so that a byte that is not written shows.
    Status poison();

    /// Values and scales of format().quantised, in that order, then w_kc and w_vc of format().splits.
    [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
    [[nodiscard]] const Tensor& values_of(std::size_t quantised) const { return tensors_[2 * quantised]; }
    [[nodiscard]] const Tensor& scales_of(std::size_t quantised) const { return tensors_[2 * quantised + 1]; }
    [[nodiscard]] const Tensor& keys_of(std::size_t split) const { return tensors_[first_split() + 2 * split]; }
    [[nodiscard]] const Tensor& values_of_split(std::size_t split) const {
        return tensors_[first_split() + 2 * split + 1];
    }

    /// All of it where it is used, and a copy of it in host memory.
    [[nodiscard]] std::span<std::byte> memory() const { return memory_.bytes(); }
    [[nodiscard]] Result<std::vector<std::byte>> on_host() const;
    /// For a file; they point into `host`.
    [[nodiscard]] std::vector<SafetensorsTensor> tensors(std::span<const std::byte> host) const;

private:
    KernelStorage(KernelFormat format, std::vector<Tensor> tensors, Buffer memory, Device* device);
    [[nodiscard]] std::size_t first_split() const { return 2 * format_.quantised.size(); }

    KernelFormat format_;
    std::vector<Tensor> tensors_;
    Buffer memory_;
    Device* device_;
    std::unique_ptr<BlockQuantiseHook> quantise_;
    std::unique_ptr<LatentSplitHook> split_;
};

}  // namespace sluice::cli

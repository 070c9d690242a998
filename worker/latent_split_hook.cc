#include "worker/latent_split_hook.h"

#include "runtime/base/dtype.h"
#include "runtime/services/copy_engine.h"

#include <fmt/format.h>

#include <array>

namespace sluice {
namespace {

StridedCopy keys_of(const KernelFormat::LatentSplit& split, std::int64_t item) {
    const std::int64_t row = split.rank * item;
    const std::int64_t head = (split.nope + split.value) * row;
    StridedCopy copy;
    copy.item = item;
    copy.sizes = {split.heads, split.rank, split.nope};
    copy.src_strides = {head, item, row};
    copy.dst_strides = {split.rank * split.nope * item, split.nope * item, item};
    return coalesce(copy, /*keep_item=*/true);
}

StridedCopy values_of(const KernelFormat::LatentSplit& split, std::int64_t item) {
    const std::int64_t row = split.rank * item;
    StridedCopy copy;
    copy.src_offset = split.nope * row;
    copy.item = split.value * row;
    copy.sizes = {split.heads};
    copy.src_strides = {(split.nope + split.value) * row};
    copy.dst_strides = {split.value * row};
    return coalesce(copy);
}

}  // namespace

Status LatentSplitHook::prepare(LayerAddresses addresses, Device* device) {
    jobs_.clear();
    jobs_.resize(demand_.parameters.size());
    for (const Target& target : targets_) {
        const KernelFormat::LatentSplit& split = target.split;
        const auto id = static_cast<std::size_t>(split.kv_b);
        const Parameter& parameter = demand_.parameters[id];
        if (addresses[id] == nullptr || parameter.shape != Dims{split.heads * (split.nope + split.value), split.rank}) {
            return invalid_argument(fmt::format(
                "parameter {} cannot be split into {} heads of {} + {} rows of {}: it has to be in a layer buffer, and "
                "of that shape",
                parameter.name, split.heads, split.nope, split.value, split.rank));
        }
        Job& job = jobs_[id].emplace();
        job.source = addresses[id];
        job.target = &target;
        job.keys = keys_of(split, size_of(parameter.dtype));
        job.values = values_of(split, size_of(parameter.dtype));
        if (device != nullptr) {
            std::array<DeviceCopy, 2> copies;
            copies[0].copy = job.keys;
            copies[0].target = target.w_kc;
            copies[1].copy = job.values;
            copies[1].target = target.w_vc;
            copies[0].source = copies[1].source = job.source;
            SLUICE_ASSIGN_OR_RETURN(job.program, device->compile(copies));
        }
    }
    return ok_status();
}

Status LatentSplitHook::run(const LandedLayer& layer) {
    for (const ParameterId parameter : layer.parameters) {
        const std::optional<Job>& job = jobs_[static_cast<std::size_t>(parameter)];
        if (!job) {
            continue;
        }
        if (layer.stream != nullptr) {
            SLUICE_RETURN_IF_ERROR(layer.stream->run(*job->program, {}));
        } else {
            strided_copy(job->keys, job->source, job->target->w_kc);
            strided_copy(job->values, job->source, job->target->w_vc);
        }
    }
    return ok_status();
}

}  // namespace sluice

#include "worker/block_quantise_hook.h"

#include <fmt/format.h>

namespace sluice {

Result<BlockQuantisation> quantisation_of(const Parameter& parameter) {
    const Dims& shape = parameter.shape;
    if (shape.size() != 2 && shape.size() != 3) {
        return invalid_argument(fmt::format(
            "parameter {} has {} dimensions; only a matrix, or one for each expert, can be quantised by blocks",
            parameter.name, shape.size()));
    }
    BlockQuantisation job;
    job.matrices = shape.size() == 3 ? shape[0] : 1;
    job.rows = shape[shape.size() - 2];
    job.columns = shape[shape.size() - 1];
    job.from = parameter.dtype;
    SLUICE_RETURN_IF_ERROR(check_quantisation(job).with_context("parameter " + parameter.name));
    return job;
}

Status BlockQuantiseHook::prepare(LayerAddresses addresses, Device* /*device*/) {
    jobs_.assign(demand_.parameters.size(), std::nullopt);
    for (const Target& target : targets_) {
        const auto id = static_cast<std::size_t>(target.parameter);
        SLUICE_ASSIGN_OR_RETURN(BlockQuantisation job, quantisation_of(demand_.parameters[id]));
        if (addresses[id] == nullptr) {
            return invalid_argument(fmt::format("parameter {} is to be quantised and does not land in a layer buffer",
                                                demand_.parameters[id].name));
        }
        job.source = addresses[id];
        job.values = target.values;
        job.scales = target.scales;
        jobs_[id] = job;
    }
    return ok_status();
}

Status BlockQuantiseHook::run(const LandedLayer& layer) {
    for (const ParameterId parameter : layer.parameters) {
        const std::optional<BlockQuantisation>& job = jobs_[static_cast<std::size_t>(parameter)];
        if (!job) {
            continue;
        }
        if (layer.stream != nullptr) {
            SLUICE_RETURN_IF_ERROR(layer.stream->quantise(*job));
        } else {
            quantise_blocks(*job);
        }
    }
    return ok_status();
}

}  // namespace sluice

#include "worker/kernel_format.h"

#include "runtime/base/dtype.h"

#include <cstddef>
#include <string_view>

namespace sluice {
namespace {

bool quantises(const Parameter& parameter) {
    const bool source =
        parameter.dtype == DType::kBF16 || parameter.dtype == DType::kF16 || parameter.dtype == DType::kF32;
    const std::string_view name = parameter.name;
    const bool matrix = parameter.shape.size() == 2 && name.ends_with("_proj.weight");
    const bool experts = parameter.shape.size() == 3 && (name.ends_with("w13_weight") || name.ends_with("w2_weight"));
    return source && (matrix || experts) && parameter.bytes() > 0;
}

}  // namespace

KernelFormat fp8_block_format(const Demand& demand, const ModelConfig& config) {
    KernelFormat format;
    const std::int64_t rank = config.integer_or("kv_lora_rank", 0);
    const std::int64_t nope = config.integer_or("qk_nope_head_dim", 0);
    const std::int64_t value = config.integer_or("v_head_dim", 0);
    for (std::size_t i = 0; i < demand.parameters.size(); ++i) {
        const Parameter& parameter = demand.parameters[i];
        if (!quantises(parameter)) {
            continue;
        }
        const auto id = static_cast<ParameterId>(i);
        format.quantised.push_back(id);
        if (rank > 0 && nope > 0 && value > 0 && parameter.name.ends_with(".kv_b_proj.weight")) {
            format.splits.push_back({id, parameter.shape[0] / (nope + value), nope, value, rank});
        }
    }
    return format;
}

}  // namespace sluice

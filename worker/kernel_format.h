#pragma once

#include "planner/demand.h"
#include "planner/ids.h"
#include "planner/model_config.h"

#include <cstdint>
#include <vector>

namespace sluice {

/// Parameters that inference engines keep in another format than their loaders write, by what BlockQuantiseHook and LatentSplitHook make of them.
struct KernelFormat {
    /// kv_b_proj of multi-head latent attention: of each head `nope` rows of keys, then `value` rows of values, each of `rank` elements.
    struct LatentSplit {
        ParameterId kv_b = 0;
        std::int64_t heads = 0;  ///< On this rank.
        std::int64_t nope = 0;
        std::int64_t value = 0;
        std::int64_t rank = 0;
    };

    std::vector<ParameterId> quantised;  ///< Matrices, or a matrix per expert.
    std::vector<LatentSplit> splits;     ///< Of parameters that are among `quantised`.
};

/// Block-quantised f8e4m3: weights named *_proj.weight with two dimensions and experts (w13_weight, w2_weight) with three, in bf16, f16 or f32; what has no
/// elements on this rank is left out. kv_b_proj is also split, where the config has latent attention.
KernelFormat fp8_block_format(const Demand& demand, const ModelConfig& config);

}  // namespace sluice

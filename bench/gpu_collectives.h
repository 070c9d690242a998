#pragma once

#include "runtime/base/status.h"

#include <nlohmann/json.hpp>

namespace sluice::bench {

struct GpuCollectivesOptions {
    int repetitions = 5;
};

/// Under mpirun, each rank with a GPU of its own: the rates of NCCL's broadcast and all-gather, in bytes that a rank gets from others per second, by
/// size of the buffer; each checked once. On rank 0 `rows` is filled.
Status bench_gpu_collectives(const GpuCollectivesOptions& options, nlohmann::json& rows);
void print_gpu_collectives_rows(const nlohmann::json& rows);

}  // namespace sluice::bench

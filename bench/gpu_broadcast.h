#pragma once

#include "cli/common_options.h"
#include "runtime/base/status.h"

#include <nlohmann/json.hpp>

namespace sluice::bench {

struct GpuBroadcastOptions {
    cli::LayoutOptions layout;
    int repetitions = 3;
};

/// Under mpirun, trainers first, each rank with a GPU of its own: the usual way to hand weights over, by NCCL. Trainer 0 gathers full tensors,
/// group by group, and broadcasts them to all workers, each of which keeps its part. The gather of a group, its broadcast and the workers' copies
/// out of it overlap with those of its neighbours. Checked on the devices after each version. On rank 0 `rows` is filled.
Status bench_gpu_broadcast(const GpuBroadcastOptions& options, nlohmann::json& rows);
void print_gpu_broadcast_rows(const nlohmann::json& rows);

}  // namespace sluice::bench

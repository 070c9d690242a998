#pragma once

#include "runtime/base/status.h"

#include <nlohmann/json.hpp>

namespace sluice::bench {

struct GpuPairsOptions {
    int repetitions = 5;
    int device = 0;
};

/// Under mpirun -n 4: two trainer processes (tp=2,ep=2) hold Qwen3-30B-A3B and two worker processes (tp=2,ep=on) pull it, all on one GPU, by the
/// paths that the planner picks. Beside each version: both workers at once copy from the trainers' mapped memory as many bytes as they
/// pull from each, with one cudaMemcpy. Checked on the device after each version. On rank 2 `row` is filled.
Status bench_gpu_pairs(const GpuPairsOptions& options, nlohmann::json& row);
void print_gpu_pairs_row(const nlohmann::json& row);

}  // namespace sluice::bench

#pragma once

#include "runtime/base/status.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace sluice::bench {

struct GpuPullOptions {
    int repetitions = 5;
    int device = 0;
    std::vector<std::string> only;  ///< Series; empty: all.
};

/// Under mpirun -n 2: one worker process pulls from one trainer process, both on one GPU. Each series is measured beside a raw get in 64 MiB
/// pieces and a copy between the two memories, of as many bytes, repetition by repetition; packed series also beside what the packing kernels of
/// the owner and a raw get take at the same time. Every version has values of its own, which are
/// checked on the device outside the timing. On rank 1 `rows` is filled.
Status bench_gpu_pull(const GpuPullOptions& options, nlohmann::json& rows);
void print_gpu_pull_rows(const nlohmann::json& rows);

}  // namespace sluice::bench

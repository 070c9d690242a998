#pragma once

#include "runtime/base/status.h"

#include <nlohmann/json.hpp>

#include <string>

namespace sluice::bench {

/// What the kernels of runtime/cuda reach on the current device, each beside a device-to-device copy in the same run. "Share" is the bytes
/// that a kernel must read and write per second over those that the copy reads and writes.
struct GpuKernelOptions {
    int repetitions = 20;
    std::int64_t bytes = std::int64_t{2} << 30;
};

/// Strided copies by length of run: packed, scattered, and from strided to strided; conversions; 100,000 pieces.
Status bench_gpu_copy(const GpuKernelOptions& options, nlohmann::json& rows);
Status bench_gpu_quantise(const GpuKernelOptions& options, nlohmann::json& rows);
Status bench_gpu_checksum(const GpuKernelOptions& options, nlohmann::json& rows);

/// One line per row, for people.
void print_gpu_rows(const nlohmann::json& rows);

}  // namespace sluice::bench

#pragma once

#include "runtime/base/status.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::bench {

struct GpuLinksOptions {
    int repetitions = 3;
    std::int64_t bytes = std::int64_t{16} << 30;  ///< That a reader reads.
    /// Who reads from whom at the same time, besides every pair alone: "T:W", the T ranks after which W come, read by those, each from all;
    /// or "all", everybody from everybody else.
    std::vector<std::string> at_once;
};

/// Under mpirun: what the links between GPUs carry, rank r on device r modulo the number of devices. Memory of other ranks is read by one kernel of
/// ours, by many at a time, by copies of the device, and by gets; each checked once. One row for each pattern and way on rank 0, of the slowest
/// reader.
Status bench_gpu_links(const GpuLinksOptions& options, nlohmann::json& rows);
void print_gpu_links_rows(const nlohmann::json& rows);

}  // namespace sluice::bench

#pragma once

#include "planner/plan_codec.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// What a plan file tells without the catalogue that it was made for.
struct PlanFileHeader {
    std::string model;
    std::string trainer_layout;
    std::vector<std::string> worker_layouts;
    std::uint64_t catalogue_digest = 0;
    std::uint64_t fingerprint = 0;
    PlanLimits limits;
    struct Demand {
        std::size_t parameters = 0;
        std::uint64_t records = 0;
        std::size_t chunks = 0;
        std::vector<std::uint32_t> workers;
    };
    std::vector<Demand> demands;
};

/// Refuses what is truncated, altered or no plan file; the numbers are as written, not checked against each other.
Result<PlanFileHeader> read_plan_file_header(std::string_view bytes);

}  // namespace sluice

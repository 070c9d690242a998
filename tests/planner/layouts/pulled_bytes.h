#pragma once

#include "planner/layout.h"
#include "planner/model_config.h"

#include <cstdint>

namespace sluice::test {

/// Bytes that rank `rank` of a pool pulls, counted from the sizes of the config by the written rules of the engines'
/// loaders (P1-P9 of the loader reference). Closed formulas: nothing of the planner but the plain values is used.
std::int64_t pulled_bytes(const ModelConfig& config, WeightForm form, const WorkerLayout& layout, int rank);

}  // namespace sluice::test

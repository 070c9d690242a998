#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/model_config.h"
#include "planner/ownership.h"
#include "planner/plan.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sluice::test {

using Bytes = std::vector<unsigned char>;

/// A small model with bytes: every tensor whole, made from its number and the byte's index.
struct SmallModel {
    ModelConfig config;
    Catalogue catalogue;
    std::vector<Bytes> tensors;
};

/// A built-in model with config fields replaced.
SmallModel small_model(const std::string& name, const std::vector<std::pair<std::string, std::string>>& fields);
/// Its shrunk form: two or three layers, 8 heads, 8 experts, sizes that divide by 8. Nine architectures have one.
SmallModel small_model(const std::string& name);
/// All of them, by name.
std::vector<std::pair<std::string, SmallModel>> small_models();

/// Any catalogue with bytes.
SmallModel with_bytes(const ModelConfig& config, const Catalogue& catalogue);

/// A model of hand-made tensors in group 0.
SmallModel hand_made(std::vector<CatalogueTensor> tensors);

/// Memory of one trainer rank: segments, and the group buffers, filled from the whole tensors. Bytes of no region are poison.
struct OwnerMemory {
    std::vector<Bytes> segments;
    std::map<GroupId, Bytes> gathered;
};
OwnerMemory fill_owner(const SmallModel& model, const Ownership& owner);
const Bytes& segment_of(const OwnerMemory& memory, SegmentId segment, GroupId group);

/// Parameters by applying the demand's records to the whole tensors: what a plan must give. Unwritten bytes are poison.
std::vector<Bytes> expected_parameters(const SmallModel& model, const Demand& demand);

/// Parameters by executing the route's pieces on the owners' memory. Fails the test when a byte is written twice, a chunk is
/// too large, a piece is out of order, or a sum is wrong.
std::vector<Bytes> execute(const Route& route, const Demand& demand, const std::vector<OwnerMemory>& owners,
                           std::int64_t chunk_bytes);

}  // namespace sluice::test

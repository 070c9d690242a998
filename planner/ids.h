#pragma once

#include <cstdint>

namespace sluice {

/// Index of a checkpoint tensor in its Catalogue (catalogue order).
using TensorId = std::int32_t;
/// Index of a parameter in a worker's parameter list.
using ParameterId = std::int32_t;
/// Number of a group: layer N of the language stack is group N + 1 (see Catalogue).
using GroupId = std::int32_t;
/// Index of a demand in a plan: one per distinct rank of a pool. Replicas share it.
using DemandId = std::int32_t;
/// Index of a chunk in its demand.
using ChunkId = std::int32_t;

/// Where an owner keeps a region. Numbers from 0 are segments that stay registered and readable (resident); this one
/// stands for the buffer into which the group is gathered: offsets in it are relative to the buffer that the publish names.
using SegmentId = std::int32_t;
inline constexpr SegmentId kGatheredSegment = -1;

}  // namespace sluice

#pragma once

#include "planner/plan.h"
#include "runtime/base/status.h"
#include "runtime/exchange/compiled_chunk.h"
#include "runtime/services/device.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

/// What is done with a chunk's bytes where they lie in GPU memory, as programs of the device: made at set-up, run in every sync.
namespace sluice {

using ChunkProgram = std::unique_ptr<DeviceProgram>;
/// Where a segment of the owner starts in this process's address space.
using SegmentBases = std::vector<const std::byte*>;

/// Gathers the chunk's pieces from the owner's segments (and its gather buffer, Device::Bases::gathered) into the wire form.
Result<ChunkProgram> compile_pack(Device& device, const ServedChunk& chunk, const SegmentBases& segments);
/// Reads the same bytes where they are: for their checksum, Side::kSource.
Result<ChunkProgram> compile_source(Device& device, const ServedChunk& chunk, const SegmentBases& segments);

/// Where parameters lie: one address each, or (gated engines) the buffer given with each run as Device::Bases::gathered.
struct DeviceTargets {
    std::function<std::byte*(ParameterId)> address;  ///< Empty: the gather buffer.
};

/// What a landing does: scatters the wire form, or copies from segments that this process sees. For a chunk that lands in place: a program to
/// hash what has landed, Side::kTarget.
Result<ChunkProgram> compile_landing(Device& device, const CompiledChunk& chunk, const SegmentBases& segments,
                                     const DeviceTargets& targets);

}  // namespace sluice

#pragma once

#include "planner/plan.h"
#include "runtime/base/status.h"
#include "runtime/exchange/device_chunks.h"
#include "runtime/services/buffer.h"
#include "runtime/services/device.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace sluice::bench {

/// All packing that an owner does in one version, with nothing of the exchange around it: what a reader has beside it when both are as fast as
/// they can be. On all lanes of the device, each with a slot of its own.
class PackLoad {
public:
    /// The packed chunks of `route`, whose segments lie at `segments`. `device` outlives it.
    static Result<std::unique_ptr<PackLoad>> create(Device& device, const OwnerRoute& route,
                                                    const SegmentBases& segments);
    /// Packs every chunk once and returns when all are done.
    Status run();

private:
    explicit PackLoad(Device& device) : device_(device) {}

    Device& device_;
    std::vector<ChunkProgram> chunks_;
    std::vector<Buffer> slots_;  // by lane
};

}  // namespace sluice::bench

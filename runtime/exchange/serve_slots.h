#pragma once

#include "planner/plan.h"
#include "runtime/base/status.h"
#include "runtime/exchange/remote_memory.h"
#include "runtime/exchange/server.h"
#include "runtime/exchange/session.h"
#include "runtime/services/buffer.h"
#include "transport/transport.h"

#include <memory>
#include <optional>

namespace sluice {

/// The registered serve slots of one flow of an owner. Nothing is allocated when its route packs nothing.
class ServeSlots {
public:
    /// Slots as large as the largest packed chunk of `route`, as many as fit into the memory of Settings::slots chunks. They are where
    /// the weights are: host memory, or that of `device`; with `staged`, pinned memory that the device writes.
    static Result<ServeSlots> create(Session& session, const OwnerRoute& route, Device* device, bool staged);

    /// Fills in the slots' part.
    void describe(RemoteMemory& memory) const;
    void describe(ServedMemory& memory) const;
    [[nodiscard]] std::int64_t bytes() const { return slot_bytes_ * count_; }

private:
    std::optional<Buffer> buffer_;
    std::unique_ptr<transport::MemoryRegion> region_;
    std::int64_t slot_bytes_ = 0;
    int count_ = 0;
};

}  // namespace sluice

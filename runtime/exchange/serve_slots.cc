#include "runtime/exchange/serve_slots.h"

#include "runtime/exchange/exchange_memory.h"
#include "runtime/exchange/flow_setup.h"

#include <algorithm>

namespace sluice {

namespace {

// Enough for any round trip; more would only be walked over.
constexpr std::int64_t kMostSlots = 256;
// Of a line of any cache, and of a GPU's accesses.
constexpr std::int64_t kSlotAlignment = 256;

}  // namespace

Result<ServeSlots> ServeSlots::create(Session& session, const OwnerRoute& route, Device* device, bool staged) {
    ServeSlots slots;
    std::int64_t consumers = 0;
    std::int64_t most_chunks = 0;  // of one consumer
    for (const ServedDemand& demand : route.demands) {
        std::int64_t chunks = 0;
        for (const ServedChunk& chunk : demand.chunks) {
            if (chunk.path == Path::kPacked) {
                slots.slot_bytes_ = std::max(slots.slot_bytes_, chunk.wire_bytes);
                ++chunks;
            }
        }
        consumers += static_cast<std::int64_t>(demand.workers.size());
        most_chunks = std::max(most_chunks, chunks);
    }
    if (slots.slot_bytes_ == 0) {
        return slots;
    }
    slots.slot_bytes_ = (slots.slot_bytes_ + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
    // Chunks are often much smaller than allowed, since a group ends them: the same memory then holds more of them, and as
    // many can be on their way to each consumer. Slots are shared out evenly, and no consumer has use for more than it reads chunks.
    const std::int64_t budget = session.settings().slots * session.settings().chunk_bytes;
    slots.count_ = static_cast<int>(
        std::clamp<std::int64_t>(budget / slots.slot_bytes_, 1, std::min(consumers * most_chunks, kMostSlots)));
    SLUICE_ASSIGN_OR_RETURN(slots.buffer_, allocate_exchange_memory(slots.bytes(), device, staged));
    SLUICE_ASSIGN_OR_RETURN(slots.region_, session.register_memory(slots.buffer_->bytes(), slots.buffer_->kind(),
                                                                   transport::Access::kRemoteRead));
    return slots;
}

void ServeSlots::describe(RemoteMemory& memory) const {
    if (region_ != nullptr) {
        memory.slots = remote_region(*region_);
        memory.slot_bytes = static_cast<std::uint64_t>(slot_bytes_);
    }
}

void ServeSlots::describe(ServedMemory& memory) const {
    if (buffer_) {
        memory.slots = buffer_->data();
        memory.slot_bytes = slot_bytes_;
        memory.slot_count = count_;
    }
}

}  // namespace sluice

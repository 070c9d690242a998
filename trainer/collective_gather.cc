#include "trainer/collective_gather.h"

#include "runtime/exchange/compiled_chunk.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

constexpr std::int64_t kAlignment = 256;

// Takes `bytes` off the memory of which `used` is in use already.
std::int64_t take(std::int64_t& used, std::int64_t bytes) {
    return std::exchange(used, used + (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

Result<std::optional<Buffer>> allocate_largest(Device& device, const std::vector<std::int64_t>& sizes) {
    const std::int64_t largest = sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
    if (largest == 0) {
        return std::optional<Buffer>();
    }
    SLUICE_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(largest));
    return std::optional<Buffer>(std::move(buffer));
}

}  // namespace

Result<CollectiveGather> CollectiveGather::create(Device& device, int lane, CollectiveGroup& group, const Route& pulled,
                                                  const OwnerRoute& served, const SegmentBases& segments,
                                                  const std::vector<GroupId>& order) {
    CollectiveGather out(device, lane, group);
    out.parts_.resize(order.size());
    out.place_.resize(order.size());
    for (std::size_t place = 0; place < order.size(); ++place) {
        out.place_[static_cast<std::size_t>(order[place])] = place;
    }
    std::vector<std::int64_t> packed(out.parts_.size()), scattered(out.parts_.size());
    for (const ServedDemand& demand : served.demands) {
        SLUICE_RETURN_IF_ERROR(out.add_sent(demand, segments, packed));
    }
    for (const Chunk& chunk : pulled.chunks) {
        SLUICE_RETURN_IF_ERROR(out.add_received(chunk, segments, scattered));
    }
    SLUICE_ASSIGN_OR_RETURN(out.packed_, allocate_largest(device, packed));
    SLUICE_ASSIGN_OR_RETURN(out.scattered_, allocate_largest(device, scattered));
    return out;
}

Status CollectiveGather::add_sent(const ServedDemand& demand, const SegmentBases& segments,
                                  std::vector<std::int64_t>& packed) {
    for (const ServedChunk& chunk : demand.chunks) {
        const std::size_t place = place_[static_cast<std::size_t>(chunk.group)];
        Sent& sent = parts_[place].sent.emplace_back();
        sent.peer = demand.workers.front();
        sent.bytes = chunk.wire_bytes;
        const Piece& first = chunk.pieces.front();
        const StridedCopy run = coalesce(packed_from_source(first.copy, 0, wire_item_bytes(first)));
        if (chunk.pieces.size() == 1 && run.items() == 1) {
            sent.shard = const_cast<std::byte*>(segments[static_cast<std::size_t>(first.segment)]) + run.src_offset;
        } else {
            SLUICE_ASSIGN_OR_RETURN(sent.pack, compile_pack(*device_, chunk, segments));
            sent.offset = take(packed[place], chunk.wire_bytes);
        }
    }
    return ok_status();
}

Status CollectiveGather::add_received(const Chunk& chunk, const SegmentBases& segments,
                                      std::vector<std::int64_t>& scattered) {
    const std::size_t place = place_[static_cast<std::size_t>(chunk.group)];
    Parts& parts = parts_[place];
    // The wire form comes in one piece, as that of a packed chunk does, whatever the route says of how it would be pulled.
    Chunk whole = chunk;
    whole.path = Path::kPacked;
    const bool own = chunk.owner == group_->rank();
    // In place only as one run.
    const CompiledChunk compiled =
        compile_chunk(whole, chunk.owner, own, {.bytes_worth_a_get_of_slot = chunk.wire_bytes + 1});
    if (own) {
        SLUICE_ASSIGN_OR_RETURN(ChunkProgram copy, compile_landing(*device_, compiled, segments, {}));
        parts.own.push_back(std::move(copy));
        return ok_status();
    }
    Received& received = parts.received.emplace_back();
    received.peer = chunk.owner;
    received.bytes = chunk.wire_bytes;
    if (compiled.landing == Landing::kInPlace) {
        received.offset = compiled.reads.front().copy.dst_offset;
    } else {
        SLUICE_ASSIGN_OR_RETURN(received.scatter, compile_landing(*device_, compiled, segments, {}));
        received.offset = take(scattered[place], chunk.wire_bytes);
    }
    return ok_status();
}

Status CollectiveGather::gather(GroupId group, std::byte* buffer, Deadline deadline) {
    SLUICE_RETURN_IF_ERROR(send_until(place_[static_cast<std::size_t>(group)], deadline));
    return exchange(parts_[next_++], buffer, deadline);
}

Status CollectiveGather::finish(Deadline deadline) { return send_until(parts_.size(), deadline); }

Status CollectiveGather::send_until(std::size_t place, Deadline deadline) {
    while (next_ < place) {
        SLUICE_RETURN_IF_ERROR(exchange(parts_[next_++], nullptr, deadline));
    }
    return ok_status();
}

Status CollectiveGather::exchange(const Parts& parts, std::byte* buffer, Deadline deadline) {
    sends_.clear();
    receives_.clear();
    for (const Sent& sent : parts.sent) {
        std::byte* data = sent.shard;
        if (sent.pack) {
            data = packed_->data() + sent.offset;
            SLUICE_RETURN_IF_ERROR(device_->run(*sent.pack, {data, nullptr}, lane_, nullptr));
        }
        sends_.push_back({sent.peer, data, sent.bytes});
    }
    for (const Received& received : parts.received) {
        receives_.push_back(
            {received.peer, (received.scatter ? scattered_->data() : buffer) + received.offset, received.bytes});
    }
    for (const ChunkProgram& copy : parts.own) {
        SLUICE_RETURN_IF_ERROR(device_->run(*copy, {nullptr, buffer}, lane_, nullptr));
    }
    if (!sends_.empty() || !receives_.empty()) {
        SLUICE_RETURN_IF_ERROR(group_->exchange(sends_, receives_, deadline));
    }
    for (const Received& received : parts.received) {
        if (received.scatter) {
            SLUICE_RETURN_IF_ERROR(
                device_->run(*received.scatter, {scattered_->data() + received.offset, buffer}, lane_, nullptr));
        }
    }
    return ok_status();
}

std::int64_t CollectiveGather::bytes() const {
    const auto size = [](const std::optional<Buffer>& buffer) {
        return buffer ? static_cast<std::int64_t>(buffer->size()) : 0;
    };
    return size(packed_) + size(scattered_);
}

}  // namespace sluice

#include "runtime/exchange/device_chunks.h"

namespace sluice {
namespace {

void from_segment(const Piece& piece, const SegmentBases& segments, DeviceCopy& copy) {
    if (piece.segment == kGatheredSegment) {
        copy.source_base = DeviceBase::kGathered;
    } else {
        copy.source_base = DeviceBase::kAddress;
        copy.source = segments[static_cast<std::size_t>(piece.segment)];
    }
}

void to_target(const Piece& piece, const DeviceTargets& targets, DeviceCopy& copy) {
    if (targets.address) {
        copy.target_base = DeviceBase::kAddress;
        copy.target = targets.address(piece.parameter);
    } else {
        copy.target_base = DeviceBase::kGathered;
    }
}

// Both sides are the one that matters, so that the other cannot spoil the alignment.
void only_source(DeviceCopy& copy) {
    copy.copy.dst_offset = copy.copy.src_offset;
    copy.copy.dst_strides = copy.copy.src_strides;
    copy.target_base = copy.source_base;
    copy.target = const_cast<std::byte*>(copy.source);
}
void only_target(DeviceCopy& copy) {
    copy.copy.src_offset = copy.copy.dst_offset;
    copy.copy.src_strides = copy.copy.dst_strides;
    copy.source_base = copy.target_base;
    copy.source = copy.target;
}

}  // namespace

Result<ChunkProgram> compile_pack(Device& device, const ServedChunk& chunk, const SegmentBases& segments) {
    std::vector<DeviceCopy> copies;
    std::int64_t offset = 0;
    for (const Piece& piece : chunk.pieces) {
        DeviceCopy& copy = copies.emplace_back();
        copy.copy = packed_from_source(piece.copy, offset, wire_item_bytes(piece));
        from_segment(piece, segments, copy);
        copy.target_base = DeviceBase::kWire;
        if (piece.source_dtype != piece.wire_dtype()) {
            copy.from = piece.source_dtype;
            copy.to = piece.wire_dtype();
        }
        offset += piece.wire_bytes();
    }
    return device.compile(copies);
}

Result<ChunkProgram> compile_source(Device& device, const ServedChunk& chunk, const SegmentBases& segments) {
    std::vector<DeviceCopy> copies;
    for (const Piece& piece : chunk.pieces) {
        DeviceCopy& copy = copies.emplace_back();
        copy.copy = piece.copy;
        from_segment(piece, segments, copy);
        only_source(copy);
    }
    return device.compile(copies);
}

Result<ChunkProgram> compile_landing(Device& device, const CompiledChunk& chunk, const SegmentBases& segments,
                                     const DeviceTargets& targets) {
    std::vector<DeviceCopy> copies;
    std::int64_t offset = 0;
    for (const Piece& piece : chunk.pieces) {
        DeviceCopy& copy = copies.emplace_back();
        const std::int64_t item = wire_item_bytes(piece);
        switch (chunk.landing) {
            case Landing::kLocalCopy:
                copy.copy = piece.copy;
                from_segment(piece, segments, copy);
                break;
            case Landing::kScatter:
                copy.copy = destination_from_packed(piece.copy, offset, item);
                copy.copy.item = item;
                copy.source_base = DeviceBase::kWire;
                if (piece.wire_dtype() != piece.parameter_dtype) {
                    copy.from = piece.wire_dtype();
                    copy.to = piece.parameter_dtype;
                }
                break;
            case Landing::kInPlace:
                copy.copy = piece.copy;
                copy.copy.item = item;
                break;
        }
        to_target(piece, targets, copy);
        if (chunk.landing == Landing::kInPlace) {
            only_target(copy);
        }
        offset += piece.wire_bytes();
    }
    return device.compile(copies);
}

}  // namespace sluice

// The second half of a PullEngine: from the last byte of a chunk read to the chunk landed.
#include "runtime/exchange/pull_engine_parts.h"
#include "runtime/services/copy_engine.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

using Clock = EventLoop::Clock;

// Nothing more is read of the owner for this chunk.
void PullEngine::owner_is_done_with(ChunkSlot& chunk) {
    Owner& owner = *owners_[static_cast<std::size_t>(chunk.compiled.owner)];
    Message message;
    message.flow = flow_;
    message.version = version_;
    message.group = chunk.compiled.group;
    message.chunk = chunk.id;
    message.slot = chunk.slot;
    if (chunk.compiled.path == Path::kPacked && !owner.is_self()) {
        message.kind = MessageKind::kSlotRead;
        links_.send(owner.config.world_rank, message);
    }
    if (--owner.parts[static_cast<std::size_t>(chunk.group_index)].reads_left == 0 && !owner.is_self()) {
        message.kind = MessageKind::kRelease;
        links_.send(owner.config.world_rank, message);
    }
}

// What this rank copies from itself has no checksum.
bool PullEngine::checked(const ChunkSlot& chunk) const {
    return options_.verify_hashes && !owners_[static_cast<std::size_t>(chunk.compiled.owner)]->is_self();
}

// Where the piece's segment starts in our own address space.
const std::byte* PullEngine::viewed(const ChunkSlot& chunk, const Piece& piece) const {
    const Owner& owner = *owners_[static_cast<std::size_t>(chunk.reader)];
    const PullOwner::View& view = owner.config.view;
    if (piece.segment == kGatheredSegment) {
        const int buffer = owner.parts[static_cast<std::size_t>(chunk.group_index)].buffer;
        return view.gather_buffers[static_cast<std::size_t>(buffer)];
    }
    return view.segments[static_cast<std::size_t>(piece.segment)];
}

void PullEngine::land(ChunkSlot& chunk) {
    chunk.state = ChunkState::kLanding;
    const bool check = checked(chunk);
    if (check && !chunk.hash) {
        fail(Status(StatusCode::kMismatch,
                    fmt::format("chunk {} of {} came without a checksum", chunk.id,
                                owners_[static_cast<std::size_t>(chunk.compiled.owner)]->config.name)));
        return;
    }
    if (chunk.compiled.landing == Landing::kInPlace && !check) {
        landed(chunk);
        return;
    }
    ++jobs_;
    if (chunk.program != nullptr) {
        copy_threads_.enqueue(chunk.job);  // It waits for the device, however small it is.
    } else {
        copy_threads_.enqueue(chunk.job, chunk.compiled.wire_bytes);
    }
}

void PullEngine::LandJob::run_on_device() {
    Device& device = *engine_.options_.device;
    const CompiledChunk& compiled = chunk_.compiled;
    const bool check = engine_.checked(chunk_);
    Device::Bases bases;
    if (chunk_.staging) {
        bases.wire = engine_.staging_.data() + *chunk_.staging;
    }
    if (engine_.gated_) {
        bases.gathered = engine_.destinations_[static_cast<std::size_t>(compiled.pieces.front().parameter)].base;
    } else if (compiled.landing == Landing::kLocalCopy) {
        const Owner& owner = *engine_.owners_[static_cast<std::size_t>(chunk_.reader)];
        if (!owner.config.view.gather_buffers.empty()) {
            const int buffer = owner.parts[static_cast<std::size_t>(chunk_.group_index)].buffer;
            bases.gathered = owner.config.view.gather_buffers[static_cast<std::size_t>(buffer)];
        }
    }
    const bool converts = compiled.landing == Landing::kScatter &&
                          std::any_of(compiled.pieces.begin(), compiled.pieces.end(),
                                      [](const Piece& piece) { return piece.wire_dtype() != piece.parameter_dtype; });
    if (compiled.landing != Landing::kInPlace) {
        status_ = device.run(*chunk_.program, bases, ran_on(), check && converts ? &hash_ : nullptr);
    }
    written_ = Clock::now();
    // Over the destination, as on the host.
    if (status_.ok() && check && !converts) {
        const auto hash = device.hash(*chunk_.program, bases, Device::Side::kTarget, ran_on());
        status_ = hash.status();
        hash_ = hash.ok() ? *hash : 0;
    }
    end_ = Clock::now();
}

void PullEngine::LandJob::run() {
    begin_ = Clock::now();
    if (chunk_.program != nullptr) {
        run_on_device();
        return;
    }
    const CompiledChunk& compiled = chunk_.compiled;
    const std::byte* wire = chunk_.staging ? engine_.staging_.data() + *chunk_.staging : nullptr;
    std::int64_t offset = 0;
    bool converts = false;
    for (const Piece& piece : compiled.pieces) {
        std::byte* base = engine_.destinations_[static_cast<std::size_t>(piece.parameter)].base;
        if (compiled.landing == Landing::kLocalCopy) {
            strided_copy(piece.copy, engine_.viewed(chunk_, piece), base);
        } else if (compiled.landing == Landing::kScatter) {
            const std::int64_t item = wire_item_bytes(piece);
            StridedCopy scatter = destination_from_packed(piece.copy, offset, item);
            scatter.item = item;
            if (piece.wire_dtype() != piece.parameter_dtype) {
                converting_copy(scatter, piece.wire_dtype(), piece.parameter_dtype, wire, base);
                converts = true;
            } else {
                strided_copy(scatter, wire, base);
            }
        }
        offset += piece.wire_bytes();
    }
    written_ = Clock::now();
    if (engine_.checked(chunk_)) {
        // Over the destination, so that a wrong scatter is found too; a widened destination no longer has the wire's bytes.
        ChunkHash hash;
        if (converts) {
            hash.update(wire, static_cast<std::size_t>(compiled.wire_bytes));
        } else {
            for (const Piece& piece : compiled.pieces) {
                StridedCopy written = piece.copy;
                written.item = wire_item_bytes(piece);
                hash.update_destination(written, engine_.destinations_[static_cast<std::size_t>(piece.parameter)].base);
            }
        }
        hash_ = hash.digest();
    }
    end_ = Clock::now();
}

// The copy of a chunk whose owner's memory we see has ended: that was its read.
void PullEngine::copied(Owner& owner, ChunkSlot& chunk, Clock::time_point begin, Clock::time_point end) {
    if (owner.is_self()) {
        bytes_copied_locally_ += chunk.compiled.wire_bytes;
    } else {
        owner.bytes += chunk.compiled.wire_bytes;
        owner.mapped_bytes += chunk.compiled.wire_bytes;
        bytes_pulled_ += chunk.compiled.wire_bytes;
        pull_span_.extend(begin, end);
    }
    one_less_in_flight(owner, end);
    if (state_ == State::kPulling) {
        chunk_read(owner, chunk, end);
        owner_is_done_with(chunk);
    }
}

// What the copy thread did.
void PullEngine::LandJob::trace() const {
    TraceRecorder* recorder = engine_.options_.trace;
    if (recorder == nullptr) {
        return;
    }
    const CompiledChunk& compiled = chunk_.compiled;
    TraceEvent event{.lane = TraceRecorder::copy_lane(ran_on()),
                     .version = engine_.version_,
                     .group = compiled.group,
                     .chunk = chunk_.id,
                     .bytes = compiled.wire_bytes};
    if (compiled.landing != Landing::kInPlace) {
        event.name = compiled.landing == Landing::kLocalCopy ? TraceName::kCopy : TraceName::kScatter;
        recorder->span(event, begin_, written_);
    }
    if (engine_.checked(chunk_)) {
        event.name = TraceName::kVerify;
        recorder->span(event, written_, end_);
    }
}

void PullEngine::LandJob::finished() {
    --engine_.jobs_;
    engine_.scatter_span_.extend(begin_, end_);
    trace();
    const CompiledChunk& compiled = chunk_.compiled;
    Owner& owner = *engine_.owners_[static_cast<std::size_t>(chunk_.reader)];
    if (chunk_.staging) {
        engine_.staging_.release(*chunk_.staging);
        chunk_.staging.reset();
        owner.staged_bytes -= compiled.wire_bytes;
    }
    if (compiled.landing == Landing::kLocalCopy) {
        engine_.copied(owner, chunk_, begin_, end_);
    }
    if (engine_.state_ == State::kPulling) {
        if (!status_.ok()) {
            engine_.fail(status_.with_context(fmt::format("chunk {} (group {})", chunk_.id, compiled.group)));
        } else if (engine_.checked(chunk_) && hash_ != *chunk_.hash) {
            ++engine_.mismatched_chunks_;
            engine_.fail(
                Status(StatusCode::kMismatch,
                       fmt::format(
                           "chunk {} (group {}, parameter {}) from {} has checksum {:016x}, its owner computed {:016x}",
                           chunk_.id, compiled.group, compiled.pieces.front().parameter, owner.config.name, hash_,
                           *chunk_.hash),
                       owner.config.world_rank));
        } else {
            engine_.landed(chunk_);
        }
    }
    status_ = ok_status();
    if (engine_.state_ == State::kPulling) {
        engine_.pump();
    } else {
        engine_.finish_if_drained();
    }
}

void PullEngine::landed(ChunkSlot& chunk) {
    chunk.state = ChunkState::kLanded;
    --chunks_left_;
    last_progress_ = Clock::now();
    Group& group = groups_[static_cast<std::size_t>(chunk.group_index)];
    if (--group.left == 0) {
        if (options_.trace != nullptr) {
            options_.trace->instant({.name = TraceName::kLanded,
                                     .lane = TraceRecorder::kTransportLane,
                                     .version = version_,
                                     .group = group.group});
        }
        events_.on_group_landed(group.group);
    }
}

}  // namespace sluice

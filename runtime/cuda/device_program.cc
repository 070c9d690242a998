#include "runtime/cuda/device_program.h"

#include "runtime/cuda/device_memory.h"
#include "runtime/cuda/segment_secrets.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr std::size_t kSlabBytes = 8 << 20;
constexpr std::size_t kAlignment = 256;

}  // namespace

Result<const std::byte*> UploadArena::upload(const void* data, std::size_t size, const CudaStream& stream) {
    const std::size_t begin = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    if (slabs_.empty() || begin + size > slabs_.back().size()) {
        SLUICE_ASSIGN_OR_RETURN(Buffer slab,
                                allocate_device_memory(static_cast<std::int64_t>(std::max(size, kSlabBytes))));
        slabs_.push_back(std::move(slab));
        used_ = 0;
    } else {
        used_ = begin;
    }
    std::byte* to = slabs_.back().data() + used_;
    used_ += size;
    SLUICE_RETURN_IF_ERROR(copy_async(to, static_cast<const std::byte*>(data), size, stream));
    SLUICE_RETURN_IF_ERROR(stream.wait());
    return static_cast<const std::byte*>(to);
}

Result<DeviceProgramView> upload_program(const CopyProgram& program, UploadArena& arena, const CudaStream& stream) {
    DeviceProgramView view;
    view.wire_bytes = program.wire_bytes;
    view.tile_count = static_cast<std::uint32_t>(program.tiles.size() - 1);
    view.converts = program.converts;
    if (program.descriptors.empty()) {
        return view;
    }
    SLUICE_ASSIGN_OR_RETURN(
        const std::byte* descriptors,
        arena.upload(program.descriptors.data(), program.descriptors.size() * sizeof(CopyDescriptor), stream));
    SLUICE_ASSIGN_OR_RETURN(const std::byte* tiles,
                            arena.upload(program.tiles.data(), program.tiles.size() * sizeof(std::uint32_t), stream));
    view.descriptors = reinterpret_cast<const CopyDescriptor*>(descriptors);
    view.tiles = reinterpret_cast<const std::uint32_t*>(tiles);
    return view;
}

Result<const std::uint64_t*> upload_secrets(UploadArena& arena, const CudaStream& stream) {
    const auto secrets = segment_secrets();
    SLUICE_ASSIGN_OR_RETURN(const std::byte* data, arena.upload(secrets.data(), sizeof(secrets), stream));
    return reinterpret_cast<const std::uint64_t*>(data);
}

Result<HashLane> HashLane::create(UploadArena& arena, const std::uint64_t* secrets, const CudaStream& stream) {
    HashSink sink;
    sink.secrets = secrets;
    const std::uint64_t zeros[2] = {0, 0};
    SLUICE_ASSIGN_OR_RETURN(const std::byte* counters, arena.upload(zeros, sizeof zeros, stream));
    auto* words = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(counters));
    sink.sum = words;
    sink.blocks_done = reinterpret_cast<std::uint32_t*>(words + 1);
    SLUICE_ASSIGN_OR_RETURN(Buffer pinned, allocate_pinned_memory(kDigests * sizeof(std::uint64_t)));
    sink.digest = reinterpret_cast<std::uint64_t*>(pinned.data());
    return HashLane(std::move(pinned), sink);
}

}  // namespace sluice

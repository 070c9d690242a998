#pragma once

#include "runtime/base/status.h"
#include "runtime/cuda/copy_kernels.h"
#include "runtime/cuda/copy_program.h"
#include "runtime/cuda/stream.h"
#include "runtime/services/buffer.h"

#include <cstdint>
#include <vector>

namespace sluice {

/// Device memory from which what is uploaded once takes its place; given back all together. Not thread-safe.
class UploadArena {
public:
    /// Copies `size` bytes to the device and waits until they are there.
    Result<const std::byte*> upload(const void* data, std::size_t size, const CudaStream& stream);

private:
    std::vector<Buffer> slabs_;
    std::size_t used_ = 0;  // of the last slab
};

/// A program on the device, in memory of `arena`.
Result<DeviceProgramView> upload_program(const CopyProgram& program, UploadArena& arena, const CudaStream& stream);

/// A HashSink with its memory. Launches one after the other, on one stream.
class HashLane {
public:
    /// Launches whose digests can be kept before the stream is waited for.
    static constexpr std::size_t kDigests = 256;

    static Result<HashLane> create(UploadArena& arena, const std::uint64_t* secrets, const CudaStream& stream);
    /// For the launch whose digest is number `i`.
    [[nodiscard]] HashSink sink(std::size_t i = 0) const {
        HashSink sink = sink_;
        sink.digest += i;
        return sink;
    }
    /// Once the stream has been waited for.
    [[nodiscard]] std::uint64_t digest(std::size_t i = 0) const { return sink_.digest[i]; }

private:
    HashLane(Buffer pinned, HashSink sink) : pinned_(std::move(pinned)), sink_(sink) {}
    Buffer pinned_;
    HashSink sink_;
};

/// The table that all sinks of a device share.
Result<const std::uint64_t*> upload_secrets(UploadArena& arena, const CudaStream& stream);

}  // namespace sluice

#pragma once

#include "runtime/base/status.h"
#include "runtime/services/buffer.h"

#include <cstddef>
#include <cstdint>
#include <string>

/// Host memory that other processes of this host can map: they copy from it without a word to its owner.
namespace sluice {

/// How another process finds such memory: a descriptor of its owner's, and which file that must be, since numbers of
/// processes and descriptors are used again.
struct SharedMemoryHandle {
    std::int32_t process = 0;
    std::int32_t descriptor = 0;
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
};

/// Like Buffer::allocate for host memory, but mappable. Move-only. The descriptor lives as long as the buffer.
class SharedBuffer {
public:
    static Result<SharedBuffer> allocate(std::int64_t size);
    SharedBuffer(SharedBuffer&& other) noexcept;
    SharedBuffer& operator=(SharedBuffer&& other) noexcept;
    ~SharedBuffer();

    [[nodiscard]] Buffer& buffer() { return buffer_; }
    [[nodiscard]] const Buffer& buffer() const { return buffer_; }
    /// Of all of the buffer, from its first byte on.
    [[nodiscard]] SharedMemoryHandle handle() const { return handle_; }

private:
    SharedBuffer(Buffer buffer, SharedMemoryHandle handle) : buffer_(std::move(buffer)), handle_(handle) {}

    Buffer buffer_;
    SharedMemoryHandle handle_;
};

/// Another process's shared memory in this one, readable only. It stays readable when its owner dies.
/// Refuses what is not there, is another file than the handle says, or is shorter than `size`.
Result<Buffer> map_shared_memory(const SharedMemoryHandle& handle, std::int64_t size);

/// Equal for two processes exactly when each can map the other's shared memory and both can be said to be one node: the same
/// running kernel, user, and namespaces of processes, network and users. Empty when the system does not tell.
std::string host_identity();
/// The same for memory of GPUs: CUDA maps it within one namespace of IPC only.
std::string device_host_identity();

}  // namespace sluice

#include "runtime/services/shared_memory.h"

#include "runtime/base/units.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <limits>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace sluice {
namespace {

constexpr int kNoDescriptor = -1;
// MFD_NOEXEC_SEAL of Linux 6.3, which the headers of older systems lack.
constexpr unsigned kNoExecSeal = 0x0008;

std::string error_text(int error) { return std::generic_category().message(error); }

void unmap(std::byte* data, std::size_t size) { ::munmap(data, size); }

class Descriptor {
public:
    explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
        }
    }
    [[nodiscard]] int get() const { return descriptor_; }
    int release() { return std::exchange(descriptor_, kNoDescriptor); }

private:
    int descriptor_;
};

// Where the system insists on memory that cannot be executed (vm.memfd_noexec=2) there is no other; older kernels do not know the word.
int create_memory_file() {
    const int file = ::memfd_create("sluice", MFD_CLOEXEC | kNoExecSeal);
    return file < 0 && errno == EINVAL ? ::memfd_create("sluice", MFD_CLOEXEC) : file;
}

std::string namespace_inode(const char* path) {
    struct stat info{};
    return ::stat(path, &info) == 0 ? fmt::format("{}:{}", info.st_dev, info.st_ino) : std::string();
}

}  // namespace

Result<SharedBuffer> SharedBuffer::allocate(std::int64_t size) {
    const auto refuse = [size](int error) {
        return Status(StatusCode::kResourceExhausted,
                      fmt::format("cannot allocate {} of shared memory: {}; use fewer ranks per host, or set "
                                  "SLUICE_MAPPED=off",
                                  format_bytes(size), error_text(error)));
    };
    if (size < 0) {
        return refuse(EINVAL);
    }
    if (size == 0) {
        return SharedBuffer(Buffer::adopt(nullptr, 0, MemoryKind::kHost, unmap), {0, kNoDescriptor, 0, 0});
    }
    Descriptor file(create_memory_file());
    struct stat info{};
    if (file.get() < 0 || ::ftruncate(file.get(), size) != 0 || ::fstat(file.get(), &info) != 0) {
        return refuse(errno);
    }
    const auto bytes = static_cast<std::size_t>(size);
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (address == MAP_FAILED) {
        return refuse(errno);
    }
    // Only a wish; most systems give shared memory small pages.
    [[maybe_unused]] const int ignored = ::madvise(address, bytes, MADV_HUGEPAGE);
    return SharedBuffer(Buffer::adopt(static_cast<std::byte*>(address), size, MemoryKind::kHost, unmap),
                        {::getpid(), file.release(), info.st_dev, info.st_ino});
}

SharedBuffer::SharedBuffer(SharedBuffer&& other) noexcept
    : buffer_(std::move(other.buffer_)),
      handle_(std::exchange(other.handle_, SharedMemoryHandle{0, kNoDescriptor, 0, 0})) {}

SharedBuffer& SharedBuffer::operator=(SharedBuffer&& other) noexcept {
    std::swap(buffer_, other.buffer_);
    std::swap(handle_, other.handle_);
    return *this;
}

SharedBuffer::~SharedBuffer() {
    if (handle_.descriptor >= 0) {
        ::close(handle_.descriptor);
    }
}

Result<Buffer> map_shared_memory(const SharedMemoryHandle& handle, std::int64_t size) {
    const std::string path = fmt::format("/proc/{}/fd/{}", handle.process, handle.descriptor);
    const auto refuse = [&](const std::string& why) {
        return Status(
            StatusCode::kUnsupported,
            fmt::format("cannot map {} of shared memory at {}: {}; set SLUICE_MAPPED=off to read it by transport",
                        format_bytes(size), path, why));
    };
    // O_NOCTTY and O_NONBLOCK: whatever the path leads to, opening it neither waits nor has an effect.
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    struct stat info{};
    if (file.get() < 0 || ::fstat(file.get(), &info) != 0) {
        return refuse(error_text(errno));
    }
    if (info.st_dev != handle.device || info.st_ino != handle.inode) {
        return refuse("another file is there now");
    }
    if (size <= 0 || info.st_size < size) {
        return refuse(fmt::format("it has {} bytes", info.st_size));
    }
    void* address =
        ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_SHARED | MAP_POPULATE, file.get(), 0);
    if (address == MAP_FAILED) {
        return refuse(error_text(errno));
    }
    return Buffer::adopt(static_cast<std::byte*>(address), size, MemoryKind::kHost, unmap);
}

std::string host_identity() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    const std::string processes = namespace_inode("/proc/self/ns/pid");
    const std::string network = namespace_inode("/proc/self/ns/net");
    // A process of another one may not look into ours. Kernels without them have one for all.
    const std::string users = namespace_inode("/proc/self/ns/user");
    if (boot.empty() || processes.empty() || network.empty()) {
        return {};
    }
    return fmt::format("{}/{}/{}/{}/{}", boot, processes, network, users, ::geteuid());
}

std::string device_host_identity() {
    const std::string host = host_identity();
    return host.empty() ? host : fmt::format("cuda {}/{}", host, namespace_inode("/proc/self/ns/ipc"));
}

}  // namespace sluice

#include "runtime/cuda/device_memory.h"

#include "runtime/base/units.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/services/log.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>

namespace sluice {
namespace {

// An allocation whose end lies within a page is mapped by other processes with smaller pages, at which copy engines read it over NVLink at three
// quarters of the rate, and on the same GPU at four fifths. CUDA takes memory from the device in such portions anyway.
constexpr std::int64_t kPage = std::int64_t{2} << 20;

std::int64_t whole_pages(std::int64_t size) { return size < kPage ? size : (size + kPage - 1) / kPage * kPage; }

void log_failure(cudaError_t error, const char* what) {
    if (error != cudaSuccess && error != cudaErrorCudartUnloading) {
        log::error("{}", from_cuda(error, what).message());
    }
}

void free_device(std::byte* data, std::size_t) { log_failure(cudaFree(data), "freeing device memory"); }
void free_pinned(std::byte* data, std::size_t) { log_failure(cudaFreeHost(data), "freeing pinned memory"); }

}  // namespace

Result<Buffer> allocate_device_memory(std::int64_t size) {
    void* data = nullptr;
    if (size > 0) {
        SLUICE_RETURN_IF_ERROR(from_cuda(cudaMalloc(&data, static_cast<std::size_t>(whole_pages(size))),
                                         fmt::format("allocating {} of device memory", format_bytes(size))));
    }
    return Buffer::adopt(static_cast<std::byte*>(data), size, MemoryKind::kCuda, free_device);
}

Result<Buffer> allocate_pinned_memory(std::int64_t size) {
    void* data = nullptr;
    if (size > 0) {
        SLUICE_RETURN_IF_ERROR(from_cuda(cudaHostAlloc(&data, static_cast<std::size_t>(size), cudaHostAllocPortable),
                                         fmt::format("allocating {} of pinned memory", format_bytes(size))));
        std::memset(data, 0, static_cast<std::size_t>(size));
    }
    return Buffer::adopt(static_cast<std::byte*>(data), size, MemoryKind::kPinned, free_pinned);
}

Status copy_async(std::byte* to, const std::byte* from, std::size_t size, const CudaStream& stream) {
    return from_cuda(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream.handle()), "copying on the device");
}

Status fill_async(std::byte* to, std::byte value, std::size_t size, const CudaStream& stream) {
    return from_cuda(cudaMemsetAsync(to, static_cast<int>(value), size, stream.handle()), "filling device memory");
}

}  // namespace sluice

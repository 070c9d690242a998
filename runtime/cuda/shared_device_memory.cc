#include "runtime/cuda/shared_device_memory.h"

#include "runtime/cuda/cuda_status.h"
#include "runtime/services/log.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>
#include <unistd.h>

namespace sluice {
namespace {

/// The form that travels. Offset and size are of the allocation, which is what CUDA opens; address is that of the owner's process.
struct SharedHandle {
    std::uint64_t process = 0;
    std::uint64_t address = 0;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    cudaIpcMemHandle_t handle{};
};

struct Allocation {
    CUdeviceptr base = 0;
    std::size_t size = 0;
};

// By the driver's entry point, looked up at run time through the runtime.
Result<Allocation> allocation_of(const std::byte* data) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    SLUICE_RETURN_IF_ERROR(
        from_cuda(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &entry, 12000, cudaEnableDefault, &found),
                  "looking for cuMemGetAddressRange in the CUDA driver"));
    if (entry == nullptr || found != cudaDriverEntryPointSuccess) {
        return Status(StatusCode::kUnsupported, "this CUDA driver has no cuMemGetAddressRange; use a newer one");
    }
    Allocation out;
    const CUresult result = reinterpret_cast<CUresult (*)(CUdeviceptr*, std::size_t*, CUdeviceptr)>(entry)(
        &out.base, &out.size, reinterpret_cast<CUdeviceptr>(data));
    if (result != CUDA_SUCCESS) {
        return invalid_argument(fmt::format("{} is no address of device memory (CUDA error {})",
                                            static_cast<const void*>(data), static_cast<int>(result)));
    }
    return out;
}

void unmap(std::byte* data, std::size_t) {
    const Result<Allocation> allocation = allocation_of(data);
    const Status closed = allocation.ok() ? from_cuda(cudaIpcCloseMemHandle(reinterpret_cast<void*>(allocation->base)),
                                                      "unmapping another process's device memory")
                                          : allocation.status();
    if (!closed.ok()) {
        log::error("{}", closed.message());
    }
}

void keep(std::byte*, std::size_t) {}

// That this device reaches what lies on another one, as CUDA sees to for what it maps.
Status reach(const std::byte* data) {
    int current = 0;
    cudaPointerAttributes attributes{};
    SLUICE_RETURN_IF_ERROR(from_cuda(cudaGetDevice(&current), "asking for the current CUDA device"));
    SLUICE_RETURN_IF_ERROR(from_cuda(cudaPointerGetAttributes(&attributes, data), "asking what an address is"));
    if (attributes.device == current) {
        return ok_status();
    }
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(attributes.device, 0);
    const Status status =
        from_cuda(enabled, fmt::format("letting CUDA device {} read memory of device {}", current, attributes.device));
    return enabled == cudaErrorPeerAccessAlreadyEnabled ? ok_status() : status;
}

// CUDA opens no handle in the process that made it: the memory is there already.
Result<Buffer> own_device_memory(const SharedHandle& shared, std::int64_t size) {
    auto* data = reinterpret_cast<std::byte*>(shared.address);
    SLUICE_ASSIGN_OR_RETURN(const Allocation allocation, allocation_of(data));
    if (allocation.size != shared.size || reinterpret_cast<CUdeviceptr>(data) - allocation.base != shared.offset) {
        return invalid_argument(fmt::format("{} is not the device memory that was shared", shared.address));
    }
    SLUICE_RETURN_IF_ERROR(reach(data));
    return Buffer::adopt(data, size, MemoryKind::kCuda, keep);
}

}  // namespace

Result<std::vector<std::byte>> share_device_memory(const std::byte* data) {
    SLUICE_ASSIGN_OR_RETURN(const Allocation allocation, allocation_of(data));
    SharedHandle shared;
    shared.process = static_cast<std::uint64_t>(::getpid());
    shared.address = reinterpret_cast<std::uint64_t>(data);
    shared.offset = reinterpret_cast<CUdeviceptr>(data) - allocation.base;
    shared.size = allocation.size;
    const Status status = from_cuda(cudaIpcGetMemHandle(&shared.handle, reinterpret_cast<void*>(allocation.base)),
                                    "exporting device memory by CUDA IPC");
    if (!status.ok()) {
        return Status(StatusCode::kUnsupported,
                      status.message() +
                          "; memory from cudaMallocAsync pools or cuMemCreate is out of reach of other "
                          "processes: allocate weights with cudaMalloc (PyTorch: without expandable_segments)");
    }
    std::vector<std::byte> bytes(sizeof shared);
    std::memcpy(bytes.data(), &shared, sizeof shared);
    return bytes;
}

Result<Buffer> map_device_memory(std::span<const std::byte> handle, std::int64_t size) {
    SharedHandle shared;
    if (handle.size() != sizeof shared) {
        return invalid_argument(fmt::format("{} bytes are no handle of shared device memory", handle.size()));
    }
    std::memcpy(&shared, handle.data(), sizeof shared);
    if (size <= 0 || shared.offset > shared.size || static_cast<std::uint64_t>(size) > shared.size - shared.offset) {
        return invalid_argument(
            fmt::format("{} bytes at {} of shared device memory that has {}", size, shared.offset, shared.size));
    }
    if (shared.process == static_cast<std::uint64_t>(::getpid())) {
        return own_device_memory(shared, size);
    }
    void* base = nullptr;
    SLUICE_RETURN_IF_ERROR(from_cuda(cudaIpcOpenMemHandle(&base, shared.handle, cudaIpcMemLazyEnablePeerAccess),
                                     "mapping another process's device memory"));
    Buffer mapped = Buffer::adopt(static_cast<std::byte*>(base) + shared.offset, size, MemoryKind::kCuda, unmap);
    SLUICE_ASSIGN_OR_RETURN(const Allocation allocation, allocation_of(static_cast<const std::byte*>(base)));
    if (shared.offset + static_cast<std::uint64_t>(size) > allocation.size) {
        return invalid_argument(fmt::format("{} bytes at {} of shared device memory that has {}, not {} as was said",
                                            size, shared.offset, allocation.size, shared.size));
    }
    return mapped;
}

}  // namespace sluice

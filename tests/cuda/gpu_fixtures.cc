#include "tests/cuda/gpu_fixtures.h"

#include "runtime/cuda/shared_library.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

namespace sluice::test {
namespace {

void free_to_pool(std::byte* data, std::size_t) {
    static_cast<void>(cudaFreeAsync(data, nullptr));
    static_cast<void>(cudaStreamSynchronize(nullptr));
}

// Null when the driver has none of that name.
template <class Function>
Function* driver(const char* name) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    static_cast<void>(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found));
    return reinterpret_cast<Function*>(entry);
}

Status check(CUresult result, const char* what) {
    return result == CUDA_SUCCESS ? ok_status()
                                  : internal_error(std::string(what) + " returned " + std::to_string(result));
}

constexpr const char* kSharedRuntime = "libcudart.so.13";

void free_with_shared_runtime(std::byte* data, std::size_t) {
    static_cast<void>(SharedLibrary(kSharedRuntime).find<decltype(cudaFree)>("cudaFree")(data));
}

// Tests leave such memory to the end of the process: taking it apart needs more than address and size.
void leave_mapped(std::byte*, std::size_t) {}

}  // namespace

Result<Buffer> allocate_from_pool(std::int64_t size) {
    void* data = nullptr;
    const cudaError_t error = cudaMallocAsync(&data, static_cast<std::size_t>(size), nullptr);
    if (error != cudaSuccess || cudaStreamSynchronize(nullptr) != cudaSuccess) {
        return internal_error(std::string("cudaMallocAsync: ") + cudaGetErrorString(error));
    }
    return Buffer::adopt(static_cast<std::byte*>(data), size, MemoryKind::kCuda, free_to_pool);
}

Result<Buffer> allocate_with_shared_runtime(std::int64_t size) {
    const SharedLibrary runtime(kSharedRuntime);
    auto* allocate = runtime.find<cudaError_t(void**, std::size_t)>("cudaMalloc");
    void* data = nullptr;
    if (const cudaError_t error = allocate(&data, static_cast<std::size_t>(size)); error != cudaSuccess) {
        return internal_error(std::string("cudaMalloc of the shared runtime: ") + cudaGetErrorString(error));
    }
    return Buffer::adopt(static_cast<std::byte*>(data), size, MemoryKind::kCuda, free_with_shared_runtime);
}

std::string why_no_shared_runtime() {
    return SharedLibrary(kSharedRuntime).loaded() ? std::string()
                                                  : std::string(kSharedRuntime) + " is not on this machine";
}

Result<Buffer> allocate_virtual(std::int64_t size, int pieces) {
    auto* granularity_of = driver<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
    auto* reserve = driver<decltype(cuMemAddressReserve)>("cuMemAddressReserve");
    auto* create = driver<decltype(cuMemCreate)>("cuMemCreate");
    auto* map = driver<decltype(cuMemMap)>("cuMemMap");
    auto* set_access = driver<decltype(cuMemSetAccess)>("cuMemSetAccess");
    if (granularity_of == nullptr || reserve == nullptr || create == nullptr || map == nullptr ||
        set_access == nullptr) {
        return Status(StatusCode::kUnsupported, "the CUDA driver has no virtual memory management");
    }
    int device = 0;
    static_cast<void>(cudaGetDevice(&device));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    std::size_t granularity = 0;
    SLUICE_RETURN_IF_ERROR(check(granularity_of(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                                 "cuMemGetAllocationGranularity"));
    const std::size_t piece =
        (static_cast<std::size_t>(size) / static_cast<std::size_t>(pieces) + granularity) / granularity * granularity;
    CUdeviceptr base = 0;
    SLUICE_RETURN_IF_ERROR(
        check(reserve(&base, piece * static_cast<std::size_t>(pieces), granularity, 0, 0), "cuMemAddressReserve"));
    for (int i = 0; i < pieces; ++i) {
        CUmemGenericAllocationHandle handle = 0;
        SLUICE_RETURN_IF_ERROR(check(create(&handle, piece, &properties, 0), "cuMemCreate"));
        SLUICE_RETURN_IF_ERROR(check(map(base + piece * static_cast<std::size_t>(i), piece, 0, handle, 0), "cuMemMap"));
    }
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    SLUICE_RETURN_IF_ERROR(
        check(set_access(base, piece * static_cast<std::size_t>(pieces), &access, 1), "cuMemSetAccess"));
    return Buffer::adopt(reinterpret_cast<std::byte*>(base), size, MemoryKind::kCuda, leave_mapped);
}

}  // namespace sluice::test

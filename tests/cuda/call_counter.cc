// A library to be preloaded that counts calls of the CUDA driver.
//
// The runtime, linked statically, finds the driver's functions by dlsym and cuGetProcAddress; so dlsym is replaced, and hands out functions
// that count and go on. UCX links the driver; the functions by which it waits are exported under their names, and come first.
#include "tests/cuda/call_counter.h"

#include <cuda.h>

#include <cstring>
#include <dlfcn.h>
#include <string_view>

namespace {

using sluice::test::CudaCalls;

CudaCalls& calls() {
    static CudaCalls counted;
    return counted;
}

using Dlsym = void*(void*, const char*);
Dlsym* real_dlsym() {
    static auto* const found = reinterpret_cast<Dlsym*>(::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
    return found;
}

void* driver_function(const char* name) {
    static void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    return driver != nullptr ? real_dlsym()(driver, name) : nullptr;
}

void count_wait() { ++calls().waits; }
void count_device_wait() {
    ++calls().waits;
    ++calls().device_waits;
}
void count_allocation() { ++calls().allocations; }

/// Stands in for one driver function. `kForm`: a driver has two of some, for the two kinds of default stream.
template <int kId, int kForm, void (*kCount)(), class Function>
struct Counted;
template <int kId, int kForm, void (*kCount)(), class... Arguments>
struct Counted<kId, kForm, kCount, CUresult(Arguments...)> {
    static inline std::atomic<CUresult (*)(Arguments...)> real{nullptr};
    static CUresult call(Arguments... arguments) {
        kCount();
        return real.load()(arguments...);
    }
    static void* in_place_of(void* function) {
        real = reinterpret_cast<CUresult (*)(Arguments...)>(function);
        return reinterpret_cast<void*>(&call);
    }
};

/// What is handed out in place of `function`, the driver's of that name.
template <int kForm>
void* watched(std::string_view name, void* function) {
#define SLUICE_WATCH(id, symbol, count, type)                          \
    if (name == symbol) {                                              \
        return Counted<id, kForm, count, type>::in_place_of(function); \
    }
    SLUICE_WATCH(0, "cuStreamSynchronize", count_wait, CUresult(CUstream))
    SLUICE_WATCH(1, "cuEventSynchronize", count_wait, CUresult(CUevent))
    SLUICE_WATCH(2, "cuCtxSynchronize", count_device_wait, CUresult())
    SLUICE_WATCH(3, "cuMemcpy", count_wait, CUresult(CUdeviceptr, CUdeviceptr, std::size_t))
    SLUICE_WATCH(4, "cuMemcpyHtoD", count_wait, CUresult(CUdeviceptr, const void*, std::size_t))
    SLUICE_WATCH(5, "cuMemcpyDtoH", count_wait, CUresult(void*, CUdeviceptr, std::size_t))
    SLUICE_WATCH(6, "cuMemcpyDtoD", count_wait, CUresult(CUdeviceptr, CUdeviceptr, std::size_t))
    SLUICE_WATCH(7, "cuMemcpy2D", count_wait, CUresult(const CUDA_MEMCPY2D*))
    SLUICE_WATCH(8, "cuMemcpy3D", count_wait, CUresult(const CUDA_MEMCPY3D*))
    SLUICE_WATCH(9, "cuMemAlloc", count_allocation, CUresult(CUdeviceptr*, std::size_t))
    SLUICE_WATCH(10, "cuMemFree", count_allocation, CUresult(CUdeviceptr))
    SLUICE_WATCH(11, "cuMemAllocPitch", count_allocation,
                 CUresult(CUdeviceptr*, std::size_t*, std::size_t, std::size_t, unsigned))
    SLUICE_WATCH(12, "cuMemHostAlloc", count_allocation, CUresult(void**, std::size_t, unsigned))
    SLUICE_WATCH(13, "cuMemAllocHost", count_allocation, CUresult(void**, std::size_t))
    SLUICE_WATCH(14, "cuMemFreeHost", count_allocation, CUresult(void*))
    SLUICE_WATCH(15, "cuMemAllocAsync", count_allocation, CUresult(CUdeviceptr*, std::size_t, CUstream))
    SLUICE_WATCH(16, "cuMemFreeAsync", count_allocation, CUresult(CUdeviceptr, CUstream))
#undef SLUICE_WATCH
    return function;
}

using GetProcAddress = CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
using OldGetProcAddress = CUresult(const char*, void**, int, cuuint64_t);
std::atomic<GetProcAddress*> real_get_proc_address{nullptr};
std::atomic<OldGetProcAddress*> real_old_get_proc_address{nullptr};

CUresult get_proc_address(const char* name, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status);
CUresult old_get_proc_address(const char* name, void** function, int version, cuuint64_t flags);

void watch(const char* name, void** function, int version, cuuint64_t flags) {
    if (function == nullptr || *function == nullptr) {
        return;
    }
    if (std::string_view(name) == "cuGetProcAddress") {
        // It is asked for itself; from 12.0 on it has one parameter more.
        if (version >= 12000) {
            real_get_proc_address = reinterpret_cast<GetProcAddress*>(*function);
            *function = reinterpret_cast<void*>(&get_proc_address);
        } else {
            real_old_get_proc_address = reinterpret_cast<OldGetProcAddress*>(*function);
            *function = reinterpret_cast<void*>(&old_get_proc_address);
        }
        return;
    }
    const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    *function = per_thread ? watched<1>(name, *function) : watched<0>(name, *function);
}

CUresult get_proc_address(const char* name, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status) {
    const CUresult result = real_get_proc_address.load()(name, function, version, flags, status);
    if (result == CUDA_SUCCESS) {
        watch(name, function, version, flags);
    }
    return result;
}

CUresult old_get_proc_address(const char* name, void** function, int version, cuuint64_t flags) {
    const CUresult result = real_old_get_proc_address.load()(name, function, version, flags);
    if (result == CUDA_SUCCESS) {
        watch(name, function, version, flags);
    }
    return result;
}

template <class Function>
Function* driver(const char* name) {
    return reinterpret_cast<Function*>(driver_function(name));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CudaCalls* sluice_cuda_calls() { return &calls(); }

void* dlsym(void* handle, const char* name) noexcept {
    void* const found = real_dlsym()(handle, name);
    if (found == nullptr || std::strncmp(name, "cuGetProcAddress", 16) != 0) {
        return found;
    }
    if (std::string_view(name) == "cuGetProcAddress_v2") {
        real_get_proc_address = reinterpret_cast<GetProcAddress*>(found);
        return reinterpret_cast<void*>(&get_proc_address);
    }
    real_old_get_proc_address = reinterpret_cast<OldGetProcAddress*>(found);
    return reinterpret_cast<void*>(&old_get_proc_address);
}

CUresult cuStreamSynchronize(CUstream stream) {
    count_wait();
    return driver<CUresult(CUstream)>("cuStreamSynchronize")(stream);
}
CUresult cuEventSynchronize(CUevent event) {
    count_wait();
    return driver<CUresult(CUevent)>("cuEventSynchronize")(event);
}
CUresult cuCtxSynchronize() {
    count_device_wait();
    return driver<CUresult()>("cuCtxSynchronize")();
}

}  // extern "C"
#pragma GCC visibility pop

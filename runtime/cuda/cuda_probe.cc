#include "runtime/cuda/cuda_probe.h"

#include "runtime/cuda/nccl_version.h"
#include "runtime/cuda/shared_library.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace sluice {
namespace {

std::string cuda_version(int code) { return fmt::format("{}.{}", code / 1000, code % 1000 / 10); }

// The entry points that are used, by the names that the driver exports (cuda.h maps some names to later versions).
struct Driver {
    explicit Driver(const SharedLibrary& library)
        : init(library.find<decltype(cuInit)>("cuInit")),
          get_version(library.find<decltype(cuDriverGetVersion)>("cuDriverGetVersion")),
          device_count(library.find<decltype(cuDeviceGetCount)>("cuDeviceGetCount")),
          device_get(library.find<decltype(cuDeviceGet)>("cuDeviceGet")),
          device_name(library.find<decltype(cuDeviceGetName)>("cuDeviceGetName")),
          device_memory(library.find<decltype(cuDeviceTotalMem)>("cuDeviceTotalMem_v2")),
          device_attribute(library.find<decltype(cuDeviceGetAttribute)>("cuDeviceGetAttribute")) {}

    [[nodiscard]] bool complete() const {
        return init != nullptr && get_version != nullptr && device_count != nullptr && device_get != nullptr &&
               device_name != nullptr && device_memory != nullptr && device_attribute != nullptr;
    }

    decltype(cuInit)* init;
    decltype(cuDriverGetVersion)* get_version;
    decltype(cuDeviceGetCount)* device_count;
    decltype(cuDeviceGet)* device_get;
    decltype(cuDeviceGetName)* device_name;
    decltype(cuDeviceTotalMem)* device_memory;
    decltype(cuDeviceGetAttribute)* device_attribute;
};

bool read_device(const Driver& driver, int index, CudaDevice& out) {
    CUdevice device = 0;
    char name[256] = {};
    std::size_t memory = 0;
    if (driver.device_get(&device, index) != CUDA_SUCCESS ||
        driver.device_name(name, sizeof(name) - 1, device) != CUDA_SUCCESS ||
        driver.device_memory(&memory, device) != CUDA_SUCCESS ||
        driver.device_attribute(&out.compute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) !=
            CUDA_SUCCESS ||
        driver.device_attribute(&out.compute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) !=
            CUDA_SUCCESS) {
        return false;
    }
    out.name = name;
    out.memory_bytes = memory;
    return true;
}

// Fills what the driver tells and returns why it told no more.
std::string ask_driver(CudaState& state) {
    const SharedLibrary library("libcuda.so.1");
    if (!library.loaded()) {
        return "no CUDA driver: libcuda.so.1 is not on this machine";
    }
    const Driver driver(library);
    if (!driver.complete()) {
        return "CUDA driver too old: libcuda.so.1 lacks entry points of CUDA " + state.toolkit_version;
    }
    int version = 0;
    if (driver.get_version(&version) == CUDA_SUCCESS) {
        state.driver_version = cuda_version(version);
    }
    if (const CUresult result = driver.init(0); result != CUDA_SUCCESS) {
        return fmt::format("CUDA driver does not start: cuInit returned {}", static_cast<int>(result));
    }
    int count = 0;
    if (driver.device_count(&count) != CUDA_SUCCESS || count == 0) {
        return "CUDA driver without a device";
    }
    for (int i = 0; i < count; ++i) {
        CudaDevice device;
        if (!read_device(driver, i, device)) {
            return fmt::format("CUDA device {} of {} does not answer", i, count);
        }
        state.devices.push_back(std::move(device));
    }
    return {};
}

}  // namespace

CudaState probe_cuda() {
    CudaState state;
    // The statically linked runtime is asked, not the header: what is linked is what will run.
    int runtime_version = 0;
    if (cudaRuntimeGetVersion(&runtime_version) == cudaSuccess) {
        state.toolkit_version = cuda_version(runtime_version);
    }
    state.nccl_headers = nccl_header_version();
    state.nccl_library = nccl_library_version();
    state.problem = ask_driver(state);
    return state;
}

}  // namespace sluice

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

struct CudaDevice {
    std::string name;
    int compute_major = 0;
    int compute_minor = 0;
    std::uint64_t memory_bytes = 0;
};

/// What this build and this machine offer of CUDA and NCCL. A version is empty where there is none.
struct CudaState {
    std::string toolkit_version;  ///< What Sluice was compiled against ("13.0").
    std::string nccl_headers;     ///< Likewise for NCCL ("2.28.3").
    std::string driver_version;   ///< The newest CUDA that the driver of this machine can run.
    std::string nccl_library;     ///< Version of the libnccl.so.2 that this process would load.
    std::vector<CudaDevice> devices;
    /// Why nothing can run on a device here, one line; empty when `devices` is not.
    std::string problem;
};

/// Asks the driver, which is looked up at run time: works, and says so, where there is none. Initialises CUDA, so it must
/// not be called in a process that forks later. Any thread.
CudaState probe_cuda();

/// The state for people, one line: "CUDA 13.0, driver for 13.0, NCCL 2.28.3; 0: NVIDIA H200, 9.0, 139.8 GiB".
std::string describe(const CudaState& state);

}  // namespace sluice

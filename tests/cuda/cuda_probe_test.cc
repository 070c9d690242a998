#include "runtime/cuda/cuda_probe.h"

#include "runtime/cuda/cuda_device.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(CudaProbe, TellsEitherDevicesOrWhyThereAreNone) {
    const CudaState state = probe_cuda();
    EXPECT_EQ(state.problem.empty(), !state.devices.empty()) << describe(state);
    for (const CudaDevice& device : state.devices) {
        EXPECT_FALSE(device.name.empty());
        EXPECT_GE(device.compute_major, 5);
        EXPECT_GT(device.memory_bytes, 1ULL << 30);
    }
    EXPECT_TRUE(state.driver_version.empty() || !state.toolkit_version.empty());
    EXPECT_EQ(describe(state).find('\n'), std::string::npos);
}

// No driver on the machine that it runs on: said in one line, and nothing else is the matter.
TEST(Cases, B01_NoDriver) {
    const CudaState state = probe_cuda();
    if (!state.driver_version.empty()) {
        GTEST_SKIP() << "there is a CUDA driver";
    }
    EXPECT_TRUE(state.devices.empty());
    EXPECT_TRUE(state.problem.starts_with("no CUDA driver") || state.problem.starts_with("built without CUDA"))
        << state.problem;
    const auto device = open_cuda_device(0, 1);
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(device.status().message().find(state.problem), std::string::npos) << device.status().message();
}

TEST(CudaProbe, DescribesABuildWithoutCuda) {
    CudaState state;
    state.problem = "built without CUDA";
    EXPECT_EQ(describe(state), "no CUDA in this build; built without CUDA");
}

// bench/multi_gpu.py reads this line and the one below: tests/bench/multi_gpu_test.py has the same, to be changed with them.
TEST(CudaProbe, DescribesDriverNcclAndDevices) {
    CudaState state;
    state.toolkit_version = "13.0";
    state.driver_version = "13.1";
    state.nccl_headers = "2.28.9";
    state.nccl_library = "2.28.3";
    state.devices = {{"NVIDIA H200", 9, 0, 150'109'880'320ULL}, {"NVIDIA B200", 10, 0, 193'273'528'320ULL}};
    EXPECT_EQ(describe(state),
              "CUDA 13.0, driver for 13.1, NCCL 2.28.9 (library 2.28.3); 0: NVIDIA H200, 9.0, 139.8 GiB; "
              "1: NVIDIA B200, 10.0, 180.0 GiB");
}

TEST(CudaProbe, DescribesNcclHeadersWithoutALibrary) {
    CudaState state;
    state.toolkit_version = "13.0";
    state.nccl_headers = "2.28.9";
    state.problem = "no CUDA driver";
    EXPECT_EQ(describe(state), "CUDA 13.0, NCCL 2.28.9 (no library here); no CUDA driver");
}

}  // namespace
}  // namespace sluice

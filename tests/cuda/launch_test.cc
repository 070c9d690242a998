// Apart from cuda_device_test, in which compute-sanitizer finds nothing: it counts the call that fails here.
#include "tests/cuda/gpu.h"

#include <cuda_runtime_api.h>

namespace sluice {
namespace {

class Launch : public test::Gpu {};

// An error of the embedding program's, which it has not asked for yet, is not the launch's, and is still there afterwards.
TEST_F(Launch, AnErrorThatWasOnTheThreadBeforeIsLeftThere) {
    const std::vector<std::byte> bytes(5000, std::byte{0x37});
    const Buffer source = to_device(bytes);
    const Buffer wire = to_device(std::vector<std::byte>(bytes.size()));
    DeviceCopy copy;
    copy.copy.item = static_cast<std::int64_t>(bytes.size());
    copy.source = source.data();
    copy.target_base = DeviceBase::kWire;
    const auto pack = device->compile(std::vector<DeviceCopy>{copy});
    ASSERT_TRUE(pack.ok()) << pack.status().message();
    const cudaError_t before = cudaMemcpy(nullptr, nullptr, 1, cudaMemcpyDeviceToHost);
    ASSERT_NE(before, cudaSuccess);
    const Device::Bases bases{wire.data(), nullptr};
    EXPECT_TRUE(device->run(**pack, bases, 0, nullptr).ok());
    EXPECT_TRUE(device->hash(**pack, bases, Device::Side::kSource, 0).ok());
    EXPECT_EQ(cudaGetLastError(), before);
    EXPECT_EQ(to_host(wire.data(), bytes.size()), bytes);
}

}  // namespace
}  // namespace sluice

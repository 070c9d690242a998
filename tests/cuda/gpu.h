#pragma once

#include "runtime/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

namespace sluice::test {

/// A test with the first GPU of the machine. Where there is none it is skipped and says why.
class Gpu : public testing::Test {
protected:
    void SetUp() override {
        auto opened = open_cuda_device(0, 2);
        if (!opened.ok() && opened.status().code() == StatusCode::kUnsupported) {
            GTEST_SKIP() << opened.status().message();
        }
        ASSERT_TRUE(opened.ok()) << opened.status().message();
        device = std::move(*opened);
    }

    Buffer to_device(const std::vector<std::byte>& bytes) {
        auto buffer = device->allocate(static_cast<std::int64_t>(bytes.size()) + 1);
        EXPECT_TRUE(buffer.ok()) << buffer.status().message();
        EXPECT_TRUE(device->copy(buffer->data(), bytes.data(), bytes.size(), 0).ok());
        return std::move(*buffer);
    }
    std::vector<std::byte> to_host(const std::byte* data, std::size_t size) {
        std::vector<std::byte> bytes(size);
        const Status status = device->copy(bytes.data(), data, size, 0);
        EXPECT_TRUE(status.ok()) << status.message();
        return bytes;
    }

    std::unique_ptr<Device> device;
};

}  // namespace sluice::test

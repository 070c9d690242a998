// Device memory of another process, mapped by CUDA IPC; and what becomes of a reader when the owner dies.
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_probe.h"
#include "runtime/services/copy_engine.h"
#include "tests/support/forked_peers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace sluice {
namespace {

using test::Blob;
using test::ForkedPeers;
using test::PeerChannel;

constexpr std::int64_t kBytes = std::int64_t{256} << 20;

// Whether there is a GPU is asked in a process of its own: CUDA must not start in one that forks.
std::string why_no_gpu() {
    ForkedPeers asking(1, [](PeerChannel& channel) {
        channel.send_to_test(test::to_blob(probe_cuda().problem));
        return 0;
    });
    const auto answer = asking.receive(0);
    asking.wait(0);
    return answer ? test::to_text(*answer) : "the process that asked for one died";
}

std::byte pattern(std::int64_t at) {
    return static_cast<std::byte>((static_cast<std::uint64_t>(at) * 2654435761u) >> 11);
}

std::vector<std::byte> pattern_bytes(std::int64_t size) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
        bytes[static_cast<std::size_t>(i)] = pattern(i);
    }
    return bytes;
}

// Rows of 768 bytes with gaps, out of the mapped memory.
Result<std::unique_ptr<DeviceProgram>> rows_of(Device& device, const std::byte* mapped, std::byte* target,
                                               std::int64_t bytes) {
    DeviceCopy copy;
    copy.copy = {0, 0, 768, Dims{bytes / 1536}, Dims{1536}, Dims{768}};
    copy.source = mapped;
    copy.target = target;
    return device.compile({&copy, 1});
}

int own(PeerChannel& channel, bool odd_place) {
    auto device = open_cuda_device(0, 1);
    EXPECT_TRUE(device.ok());
    auto memory = (*device)->allocate(kBytes + 4096);
    EXPECT_TRUE(memory.ok());
    std::byte* data = memory->data() + (odd_place ? 4096 : 0);
    const auto bytes = pattern_bytes(kBytes);
    EXPECT_TRUE((*device)->copy(data, bytes.data(), bytes.size(), 0).ok());
    const auto handle = (*device)->share(data);
    EXPECT_TRUE(handle.ok()) << handle.status().message();
    channel.all_gather(handle.ok() ? *handle : Blob{});
    channel.barrier();  // the reader is done, or we are killed
    return 0;
}

TEST(SharedDeviceMemory, IsReadInPlaceByAnotherProcess) {
    if (const std::string why = why_no_gpu(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    ForkedPeers peers({[](PeerChannel& channel) { return own(channel, true); },
                       [](PeerChannel& channel) {
                           auto device = open_cuda_device(0, 1);
                           EXPECT_TRUE(device.ok());
                           const auto handles = channel.all_gather({});
                           {
                               auto mapped = (*device)->map(*handles[0], kBytes);
                               auto again = (*device)->map(*handles[0], kBytes);
                               EXPECT_TRUE(mapped.ok() && again.ok()) << mapped.status().message();
                               // Whole pages, so that all of it is mapped with large ones.
                               constexpr std::int64_t kPage = std::int64_t{2} << 20;
                               const std::int64_t whole = (kBytes + 4096 + kPage - 1) / kPage * kPage - 4096;
                               EXPECT_TRUE((*device)->map(*handles[0], whole).ok());
                               EXPECT_FALSE((*device)->map(*handles[0], whole + 1).ok());
                               Blob cut = *handles[0];
                               cut.pop_back();
                               EXPECT_FALSE((*device)->map(cut, kBytes).ok());
                               auto target = (*device)->allocate(kBytes / 2);
                               auto program = rows_of(**device, mapped->data(), target->data(), kBytes);
                               std::uint64_t digest = 0;
                               EXPECT_TRUE((*device)->run(**program, {}, 0, &digest).ok());
                               const auto bytes = pattern_bytes(kBytes);
                               ChunkHash expected;
                               expected.update_source({0, 0, 768, Dims{kBytes / 1536}, Dims{1536}, Dims{768}},
                                                      bytes.data());
                               EXPECT_EQ(digest, expected.digest());
                           }
                           channel.barrier();
                           return 0;
                       }},
                      std::chrono::seconds(100));
    EXPECT_TRUE(peers.wait_all_ok());
}

// The rule for the path *mapped* between processes: a dead owner must not spoil the reader's context.
TEST(SharedDeviceMemory, OutlivesItsOwnerAndLeavesTheReaderWell) {
    if (const std::string why = why_no_gpu(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    ForkedPeers peers({[](PeerChannel& channel) { return own(channel, false); },
                       [](PeerChannel& channel) {
                           auto device = open_cuda_device(0, 1);
                           EXPECT_TRUE(device.ok());
                           const auto handles = channel.all_gather({});
                           auto mapped = (*device)->map(*handles[0], kBytes);
                           EXPECT_TRUE(mapped.ok()) << mapped.status().message();
                           auto target = (*device)->allocate(kBytes / 2);
                           auto program = rows_of(**device, mapped->data(), target->data(), kBytes);
                           const auto bytes = pattern_bytes(kBytes);
                           ChunkHash expected;
                           expected.update_source({0, 0, 768, Dims{kBytes / 1536}, Dims{1536}, Dims{768}},
                                                  bytes.data());
                           channel.send_to_test(test::to_blob("reading"));
                           // Kernels read without a pause while the owner is killed, and a while longer.
                           int wrong = 0;
                           int runs = 0;
                           const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
                           while (std::chrono::steady_clock::now() < end) {
                               std::uint64_t digest = 0;
                               const Status status = (*device)->run(**program, {}, 0, &digest);
                               EXPECT_TRUE(status.ok()) << "after " << runs << " runs: " << status.message();
                               if (!status.ok()) {
                                   return ForkedPeers::kFailedExpectations;
                               }
                               wrong += digest != expected.digest() ? 1 : 0;
                               ++runs;
                           }
                           EXPECT_EQ(wrong, 0) << "of " << runs << " runs";
                           EXPECT_GT(runs, 1000);
                           // The context still works for other memory.
                           auto fresh = (*device)->allocate(1 << 20);
                           EXPECT_TRUE(fresh.ok());
                           EXPECT_TRUE((*device)->fill(fresh->data(), std::byte{1}, fresh->size(), 0).ok());
                           return 0;
                       }},
                      std::chrono::seconds(100));
    ASSERT_TRUE(peers.receive(1));
    std::this_thread::sleep_for(std::chrono::seconds(1));
    peers.kill(0);
    EXPECT_TRUE(peers.wait_all_ok({0}));
}

}  // namespace
}  // namespace sluice

#include "runtime/services/shared_memory.h"

#include <gmock/gmock.h>

#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sluice {
namespace {

using testing::HasSubstr;

// `seen` tells by its result, in another process, whether it saw what it should.
int in_another_process(const std::function<bool()>& seen) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::_exit(seen() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SharedMemoryTest, AnotherProcessSeesWhatIsWritten) {
    constexpr std::int64_t kSize = (3 << 20) + 5;
    auto shared = SharedBuffer::allocate(kSize);
    ASSERT_TRUE(shared.ok());
    Buffer& buffer = shared->buffer();
    EXPECT_EQ(buffer.size(), static_cast<std::size_t>(kSize));
    EXPECT_EQ(buffer.data()[kSize - 1], std::byte{0});
    std::memset(buffer.data(), 7, buffer.size());
    EXPECT_EQ(in_another_process([&] {
                  const auto mapped = map_shared_memory(shared->handle(), kSize);
                  return mapped.ok() && mapped->data() != buffer.data() &&
                         std::memcmp(mapped->data(), buffer.data(), buffer.size()) == 0;
              }),
              0);
}

TEST(SharedMemoryTest, AMappingOutlivesItsBufferButTheHandleDoesNot) {
    std::optional<Buffer> mapping;
    SharedMemoryHandle handle;
    {
        auto shared = SharedBuffer::allocate(4096);
        ASSERT_TRUE(shared.ok());
        shared->buffer().data()[17] = std::byte{3};
        handle = shared->handle();
        auto mapped = map_shared_memory(handle, 4096);
        ASSERT_TRUE(mapped.ok());
        mapping = std::move(*mapped);
    }
    EXPECT_EQ(mapping->data()[17], std::byte{3});
    const auto late = map_shared_memory(handle, 4096);
    ASSERT_FALSE(late.ok());
    EXPECT_THAT(late.status().message(), HasSubstr("SLUICE_MAPPED=off"));
}

TEST(SharedMemoryTest, AnotherFileOrAShorterOneIsRefused) {
    auto shared = SharedBuffer::allocate(4096);
    auto other = SharedBuffer::allocate(4096);
    ASSERT_TRUE(shared.ok() && other.ok());
    SharedMemoryHandle handle = shared->handle();
    EXPECT_FALSE(map_shared_memory(handle, 4097).ok());
    EXPECT_FALSE(map_shared_memory(handle, 0).ok());
    handle.descriptor = other->handle().descriptor;
    EXPECT_THAT(map_shared_memory(handle, 4096).status().message(), HasSubstr("another file"));
    handle = {-1, -1, 0, 0};
    EXPECT_FALSE(map_shared_memory(handle, 4096).ok());
}

TEST(SharedMemoryTest, NothingAndTooMuch) {
    EXPECT_TRUE(SharedBuffer::allocate(0).ok());
    const auto refused = SharedBuffer::allocate(-1);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
}

TEST(SharedMemoryTest, ItCannotBeExecuted) {
    constexpr unsigned kNoExecSeal = 0x0008;
    const int probe = ::memfd_create("probe", kNoExecSeal);
    if (probe < 0) {
        GTEST_SKIP() << "this kernel does not know MFD_NOEXEC_SEAL";
    }
    ::close(probe);
    const auto shared = SharedBuffer::allocate(4096);
    ASSERT_TRUE(shared.ok());
    struct stat info{};
    ASSERT_EQ(::fstat(shared->handle().descriptor, &info), 0);
    EXPECT_EQ(info.st_mode & 0111, 0u);
}

TEST(HostIdentityTest, IsThatOfAllProcessesOfTheHost) {
    const std::string mine = host_identity();
    ASSERT_FALSE(mine.empty());
    EXPECT_EQ(in_another_process([&] { return host_identity() == mine; }), 0);
}

TEST(HostIdentityTest, IsAnotherInAnotherNamespaceOfUsers) {
    constexpr int kRefused = 2;
    const std::string mine = host_identity();
    const uid_t user = ::geteuid();
    const int result = in_another_process([&] {
        if (::unshare(CLONE_NEWUSER) != 0) {
            ::_exit(kRefused);
        }
        // The same number in both: it is the namespace that tells them apart.
        std::ofstream("/proc/self/uid_map") << user << " " << user << " 1";
        return ::geteuid() == user && host_identity() != mine && !host_identity().empty();
    });
    if (result == kRefused) {
        GTEST_SKIP() << "this user may not make namespaces of users";
    }
    EXPECT_EQ(result, 0);
}

// CUDA maps nothing from there, and the kernel does. Only who may leave the namespace can try it.
TEST(HostIdentityTest, IsAnotherForDevicesInAnotherNamespaceOfIpc) {
    const std::string host = host_identity();
    const std::string device = device_host_identity();
    ASSERT_NE(device, host);
    EXPECT_EQ(in_another_process([&] { return device_host_identity() == device; }), 0);
    EXPECT_EQ(in_another_process([&] {
                  return ::unshare(CLONE_NEWIPC) != 0 || (host_identity() == host && !device_host_identity().empty() &&
                                                          device_host_identity() != device);
              }),
              0);
}

}  // namespace
}  // namespace sluice

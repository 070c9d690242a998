#include "transport/transport_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <sys/wait.h>

namespace sluice::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
    int exit_code = -1;
    std::string output;  // stdout and stderr
};

Outcome run_with_library_path(const std::string& path) {
    const std::string command = "LD_LIBRARY_PATH='" + path + "' " SLUICE_PRINT_TRANSPORTS " 2>&1";
    Outcome run;
    std::FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) {
        return run;
    }
    std::array<char, 1024> buffer{};
    while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) {
        run.output += buffer.data();
    }
    const int status = ::pclose(pipe);
    run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return run;
}

void expect_refusal(const Outcome& run, const std::string& version, const std::string& folder) {
    EXPECT_EQ(run.exit_code, 2) << run.output;
    EXPECT_THAT(run.output,
                AllOf(HasSubstr(version), HasSubstr(folder), HasSubstr("1.22"), HasSubstr("LD_LIBRARY_PATH")));
    EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1) << run.output;
}

TEST(TransportInfoTest, NamesLibraryTransportsAndMemory) {
    const Outcome run = run_with_library_path("");
    EXPECT_EQ(run.exit_code, 0) << run.output;
    EXPECT_THAT(run.output, AllOf(HasSubstr("libucp"), HasSubstr("transport tcp/lo\n"),
                                  HasSubstr("transport cma/memory\n"), HasSubstr("memory host\n")));
}

TEST(TransportInfoTest, AnOldLibraryIsRefusedByPathAndVersion) {
    expect_refusal(run_with_library_path(SLUICE_OLD_UCX_FOLDER), "1.21.7", SLUICE_OLD_UCX_FOLDER);
}

// Open MPI brings Debian's own UCX along, which is what a user's LD_LIBRARY_PATH would really find.
TEST(TransportInfoTest, TheLibraryOfTheDistributionIsRefused) {
    const std::string folder = SLUICE_SYSTEM_LIBRARY_FOLDER;
    ASSERT_TRUE(std::filesystem::exists(folder + "/libucp.so.0")) << "Open MPI's package depends on it";
    const Outcome run = run_with_library_path(folder);
    expect_refusal(run, "1.", folder);
}

TEST(TransportInfoTest, VersionsAreComparedAsNumbers) {
    const auto check = [](unsigned major, unsigned minor) {
        return check_ucx({major, minor, 0, "/lib/libucp.so"}).ok();
    };
    EXPECT_TRUE(check(1, 22));
    EXPECT_TRUE(check(1, 100));
    EXPECT_TRUE(check(2, 0));
    EXPECT_FALSE(check(1, 21));
    EXPECT_FALSE(check(1, 3));
    EXPECT_FALSE(check(0, 99));
}

}  // namespace
}  // namespace sluice::transport

#include "cli/json_output.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <unistd.h>

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

class WriteFile : public ::testing::Test {
protected:
    WriteFile() : folder_(fs::temp_directory_path() / ("sluice-write-" + std::to_string(::getpid()))) {
        fs::create_directory(folder_);
    }
    ~WriteFile() override { fs::remove_all(folder_); }
    [[nodiscard]] std::string at(const char* name) const { return (folder_ / name).string(); }
    [[nodiscard]] static std::string content(const std::string& path) { return read_file(path, 1000).value(); }

    fs::path folder_;
};

TEST_F(WriteFile, ReplacesAFileAndLeavesNothingBeside) {
    ASSERT_TRUE(write_file(at("a"), "former, and longer").ok());
    ASSERT_TRUE(write_file(at("a"), "new").ok());
    EXPECT_EQ(content(at("a")), "new");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(WriteFile, WritesWhatALinkLeadsTo) {
    ASSERT_TRUE(write_file(at("runs"), "former, and longer").ok());
    fs::create_symlink("runs", at("latest"));
    ASSERT_TRUE(write_file(at("latest"), "new").ok());
    EXPECT_TRUE(fs::is_symlink(at("latest")));
    EXPECT_EQ(content(at("runs")), "new");
}

TEST_F(WriteFile, IsToldBeforehandWhatCannotBeWritten) {
    EXPECT_TRUE(check_writable(at("new")).ok());
    EXPECT_FALSE(fs::exists(at("new")));
    ASSERT_TRUE(write_file(at("there"), "x").ok());
    EXPECT_TRUE(check_writable(at("there")).ok());
    EXPECT_TRUE(check_writable("relative").ok());
    EXPECT_TRUE(check_writable("/dev/null").ok());
    fs::create_symlink("there", at("link"));
    EXPECT_TRUE(check_writable(at("link")).ok());
    fs::create_symlink("made-by-it", at("dangling"));
    EXPECT_TRUE(check_writable(at("dangling")).ok());
    fs::create_symlink("none/x", at("lost"));
    for (const std::string& path : {at("none/x"), folder_.string(), at("there/x"), at("lost")}) {
        const Status status = check_writable(path);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << path;
        EXPECT_EQ(status.message().rfind("cannot write " + path + ": ", 0), 0U) << status.message();
    }
}

TEST(OutputTarget, StandardOutputHasTwoNames) {
    EXPECT_EQ(Output("-").people(), stderr);
    EXPECT_EQ(Output("/dev/stdout").people(), stderr);
    EXPECT_EQ(Output("x.json").people(), stdout);
}

}  // namespace
}  // namespace sluice::cli

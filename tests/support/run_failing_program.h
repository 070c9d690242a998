#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <sys/wait.h>

namespace sluice::test {

struct ProgramResult {
    std::string output;  ///< stdout and stderr
    int code = -1;       ///< As a shell sees it: 128 + signal when a signal ended it.
};

/// Runs tests/support/failing_on_purpose with the given arguments.
inline ProgramResult run_failing_program(const std::string& arguments) {
    ProgramResult result;
    const std::string command = "'" SLUICE_FAILING_PROGRAM "' " + arguments + " 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) {
        ADD_FAILURE() << "popen failed for " << command;
        return result;
    }
    char buffer[4096];
    while (const std::size_t size = std::fread(buffer, 1, sizeof(buffer), pipe)) {
        result.output.append(buffer, size);
    }
    const int status = ::pclose(pipe);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
}

}  // namespace sluice::test

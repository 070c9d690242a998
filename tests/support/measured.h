#pragma once

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace sluice::test {

/// A line "measured: ..." on stdout: what a test has found out, beside that it passed. `make test-rdma` shows these lines at its end.
template <class... Args>
void print_measured(fmt::format_string<Args...> format, Args&&... args) {
    fmt::print("measured: {}\n", fmt::format(format, std::forward<Args>(args)...));
}

inline double seconds(std::chrono::steady_clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
}

}  // namespace sluice::test

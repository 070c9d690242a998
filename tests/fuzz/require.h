#pragma once

#include <cstdio>
#include <cstdlib>

namespace sluice::test {

/// Ends the program when a promise is broken: what a fuzzer calls a crash.
inline void require(bool holds, const char* promise) {
    if (!holds) {
        std::fprintf(stderr, "broken: %s\n", promise);
        std::abort();
    }
}

}  // namespace sluice::test

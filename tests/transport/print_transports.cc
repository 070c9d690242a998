// Prints what `sluice info` prints about transports; exits with 2 when UCX is refused.
#include "transport/transport_info.h"

#include <fmt/core.h>

#include <cstdio>

int main() {
    const auto info = sluice::transport::inspect_transports({});
    if (!info.ok()) {
        fmt::print(stderr, "{}\n", info.status().message());
        return 2;
    }
    fmt::print("{} {}\n", info.value().library.version(), info.value().library.path);
    for (const std::string& transport : info.value().transports) {
        fmt::print("transport {}\n", transport);
    }
    for (const std::string& kind : info.value().memory_kinds) {
        fmt::print("memory {}\n", kind);
    }
    return 0;
}

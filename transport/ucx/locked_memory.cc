#include "transport/ucx/locked_memory.h"

#include <fmt/format.h>

#include <sys/resource.h>

namespace sluice::transport {

std::string locked_memory_hint() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return {};
    }
    return fmt::format(
        "; the limit for locked memory is {} KiB (raise it with ulimit -l unlimited, in a container with "
        "--ulimit memlock=-1)",
        limit.rlim_cur / 1024);
}

}  // namespace sluice::transport

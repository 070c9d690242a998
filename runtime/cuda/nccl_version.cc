#include "runtime/cuda/nccl_version.h"

#include "runtime/cuda/shared_library.h"

#include <fmt/format.h>
#include <nccl.h>

namespace sluice {

std::string nccl_header_version() { return fmt::format("{}.{}.{}", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH); }

std::string nccl_library_version() {
    const SharedLibrary library("libnccl.so.2");
    auto* get_version = library.loaded() ? library.find<decltype(ncclGetVersion)>("ncclGetVersion") : nullptr;
    int code = 0;
    if (get_version == nullptr || get_version(&code) != ncclSuccess) {
        return {};
    }
    return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

}  // namespace sluice

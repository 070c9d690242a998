#include "transport/ucx/ucx_library.h"

#include <fmt/format.h>
#include <ucp/api/ucp.h>

#include <climits>
#include <cstdlib>
#include <dlfcn.h>
#include <tuple>

namespace sluice::transport {
namespace {

constexpr unsigned kMinMajor = 1;
constexpr unsigned kMinMinor = 22;

}  // namespace

std::string UcxLibrary::version() const { return fmt::format("{}.{}.{}", major, minor, patch); }

UcxLibrary loaded_ucx() {
    UcxLibrary out;
    ucp_get_version(&out.major, &out.minor, &out.patch);
    Dl_info info{};
    // The address of the function as this program sees it may be a stub in the program: ask for the real one.
    const void* function = dlsym(RTLD_DEFAULT, "ucp_get_version");
    if (function != nullptr && dladdr(function, &info) != 0 && info.dli_fname != nullptr) {
        char resolved[PATH_MAX];
        out.path = ::realpath(info.dli_fname, resolved) != nullptr ? resolved : info.dli_fname;
    }
    return out;
}

Status check_ucx(const UcxLibrary& library) {
    if (std::tie(library.major, library.minor) >= std::tie(kMinMajor, kMinMinor)) {
        return ok_status();
    }
    return invalid_argument(
        fmt::format("UCX {} of {} is too old, {}.{} is needed; take its folder out of LD_LIBRARY_PATH, or put that of "
                    "a newer one first",
                    library.version(), library.path, kMinMajor, kMinMinor));
}

}  // namespace sluice::transport

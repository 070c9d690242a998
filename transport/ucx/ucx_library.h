#pragma once

#include "runtime/base/status.h"

#include <string>

namespace sluice::transport {

struct UcxLibrary {
    unsigned major = 0;
    unsigned minor = 0;
    unsigned patch = 0;
    std::string path;  ///< The file that was really loaded.

    [[nodiscard]] std::string version() const;
};

/// What the dynamic linker found. Calls nothing of UCX but its version function, which every version has. Any thread.
UcxLibrary loaded_ucx();

/// Refuses a library older than 1.22, naming file, version and remedy. To be asked before anything else of UCX is
/// called: what it lacks would be missed only at the first call.
Status check_ucx(const UcxLibrary& library);

}  // namespace sluice::transport

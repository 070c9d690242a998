#pragma once

#include <string>

namespace sluice {

/// Version of NCCL's header at compile time; empty where it was not found.
std::string nccl_header_version();
/// Version of the libnccl.so.2 that can be loaded here; empty without one.
std::string nccl_library_version();

}  // namespace sluice

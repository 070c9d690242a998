#include "runtime/cuda/nccl_version.h"

namespace sluice {

std::string nccl_header_version() { return {}; }
std::string nccl_library_version() { return {}; }

}  // namespace sluice

#include "runtime/cuda/nccl_group.h"

namespace sluice {
namespace {

Status no_nccl() {
    return {StatusCode::kUnsupported,
            "no NCCL: built without CUDA or nccl.h; gather by pulls, or configure with NCCL_ROOT and a CUDA toolkit"};
}

}  // namespace

Result<std::vector<std::byte>> make_nccl_group_id() { return no_nccl(); }

Result<std::unique_ptr<NcclGroup>> open_nccl_group(std::span<const std::byte> /*id*/, int /*rank*/, int /*size*/,
                                                   int /*ordinal*/, Deadline /*deadline*/) {
    return no_nccl();
}

}  // namespace sluice

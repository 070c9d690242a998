#include "runtime/cuda/nccl_library.h"

#include "runtime/cuda/shared_library.h"

#include <fmt/format.h>

#include <string>

namespace sluice {

Result<NcclLibrary> NcclLibrary::load() {
    const SharedLibrary library("libnccl.so.2");
    if (!library.loaded()) {
        return Status(StatusCode::kUnsupported,
                      "no NCCL: libnccl.so.2 cannot be loaded; gather by pulls, or put it into LD_LIBRARY_PATH");
    }
    NcclLibrary out;
    std::string missing;
    const auto find = [&]<class Function>(Function*& function, const char* name) {
        function = library.find<Function>(name);
        missing = function == nullptr ? name : missing;
    };
    find(out.get_unique_id, "ncclGetUniqueId");
    find(out.init, "ncclCommInitRankConfig");
    find(out.async_error, "ncclCommGetAsyncError");
    find(out.abort, "ncclCommAbort");
    find(out.group_start, "ncclGroupStart");
    find(out.group_end, "ncclGroupEnd");
    find(out.send, "ncclSend");
    find(out.receive, "ncclRecv");
    find(out.broadcast, "ncclBroadcast");
    find(out.all_gather, "ncclAllGather");
    find(out.error_string, "ncclGetErrorString");
    find(out.last_error, "ncclGetLastError");
    if (!missing.empty()) {
        return Status(StatusCode::kUnsupported,
                      fmt::format("this libnccl.so.2 has no {}; gather by pulls, or use NCCL 2.18 or newer", missing));
    }
    return out;
}

}  // namespace sluice

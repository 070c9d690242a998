#pragma once

#include "runtime/base/status.h"

#include <nccl.h>

namespace sluice {

/// What is used of NCCL: functions of libnccl.so.2, which is looked up at run time.
struct NcclLibrary {
    decltype(ncclGetUniqueId)* get_unique_id = nullptr;
    decltype(ncclCommInitRankConfig)* init = nullptr;
    decltype(ncclCommGetAsyncError)* async_error = nullptr;
    decltype(ncclCommAbort)* abort = nullptr;
    decltype(ncclGroupStart)* group_start = nullptr;
    decltype(ncclGroupEnd)* group_end = nullptr;
    decltype(ncclSend)* send = nullptr;
    decltype(ncclRecv)* receive = nullptr;
    decltype(ncclBroadcast)* broadcast = nullptr;
    decltype(ncclAllGather)* all_gather = nullptr;
    decltype(ncclGetErrorString)* error_string = nullptr;
    decltype(ncclGetLastError)* last_error = nullptr;

    /// An error says what is missing and what to do about it.
    static Result<NcclLibrary> load();
};

}  // namespace sluice

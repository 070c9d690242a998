#include "runtime/cuda/cuda_status.h"

namespace sluice {

Status from_cuda(cudaError_t error, const std::string& what) {
    if (error == cudaSuccess) {
        return ok_status();
    }
    // Takes the error off the thread, so that the next call does not report it once more (it stays if the context is broken).
    static_cast<void>(cudaGetLastError());
    const std::string text = what + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
    switch (error) {
        case cudaErrorMemoryAllocation:
            return {StatusCode::kResourceExhausted, text + "; use fewer ranks per GPU, or smaller staging or slots"};
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorInvalidDevice:
        case cudaErrorNotSupported:
            return {StatusCode::kUnsupported, text};
        case cudaErrorInvalidValue:
            return {StatusCode::kInvalidArgument, text};
        default:
            return {StatusCode::kInternal, text};
    }
}

bool not_ready(cudaError_t answer) {
    if (answer != cudaErrorNotReady) {
        return false;
    }
    static_cast<void>(cudaGetLastError());
    return true;
}

}  // namespace sluice

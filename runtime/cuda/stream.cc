#include "runtime/cuda/stream.h"

#include "runtime/cuda/cuda_status.h"
#include "runtime/services/log.h"

#include <cuda_runtime_api.h>

namespace sluice {
namespace {

// What a destructor could not do is logged; after the end of the driver there is nothing left to do.
void log_failure(cudaError_t error, const char* what) {
    if (error != cudaSuccess && error != cudaErrorCudartUnloading) {
        log::error("{}", from_cuda(error, what).message());
    }
}

}  // namespace

Result<CudaStream> CudaStream::create() {
    cudaStream_t stream = nullptr;
    SLUICE_RETURN_IF_ERROR(
        from_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a CUDA stream"));
    return CudaStream(stream);
}

CudaStream::~CudaStream() {
    if (handle_ != nullptr) {
        log_failure(cudaStreamDestroy(handle_), "giving a CUDA stream back");
    }
}

Status CudaStream::wait() const { return from_cuda(cudaStreamSynchronize(handle_), "waiting for a CUDA stream"); }

Result<CudaEvent> CudaEvent::create() {
    cudaEvent_t event = nullptr;
    SLUICE_RETURN_IF_ERROR(from_cuda(cudaEventCreate(&event), "making a CUDA event"));
    return CudaEvent(event);
}

CudaEvent::~CudaEvent() {
    if (handle_ != nullptr) {
        log_failure(cudaEventDestroy(handle_), "giving a CUDA event back");
    }
}

Status CudaEvent::record(const CudaStream& stream) const {
    return from_cuda(cudaEventRecord(handle_, stream.handle()), "recording a CUDA event");
}

Status CudaEvent::wait() const { return from_cuda(cudaEventSynchronize(handle_), "waiting for a CUDA event"); }

Result<double> CudaEvent::seconds_since(const CudaEvent& begin) const {
    float milliseconds = 0;
    SLUICE_RETURN_IF_ERROR(
        from_cuda(cudaEventElapsedTime(&milliseconds, begin.handle(), handle_), "asking CUDA events for a time"));
    return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace sluice

#pragma once

#include "runtime/base/status.h"

#include <utility>

// CUDA's own types, by their public tags: callers need no CUDA header.
struct CUstream_st;
struct CUevent_st;

namespace sluice {

/// A CUDA stream of the device that was current when it was made. Non-blocking: it never waits for the legacy default stream, nor
/// for what the embedding program runs there. Move-only.
class CudaStream {
public:
    static Result<CudaStream> create();
    CudaStream(CudaStream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    CudaStream& operator=(CudaStream&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~CudaStream();

    [[nodiscard]] CUstream_st* handle() const { return handle_; }
    /// Blocks the calling thread until all that was launched on it has ended; its error, if there was one.
    [[nodiscard]] Status wait() const;

private:
    explicit CudaStream(CUstream_st* handle) : handle_(handle) {}
    CUstream_st* handle_;
};

/// A point in a stream, with a time. Move-only.
class CudaEvent {
public:
    static Result<CudaEvent> create();
    CudaEvent(CudaEvent&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    CudaEvent& operator=(CudaEvent&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~CudaEvent();

    [[nodiscard]] CUevent_st* handle() const { return handle_; }
    [[nodiscard]] Status record(const CudaStream& stream) const;
    [[nodiscard]] Status wait() const;
    /// Seconds on the device from `begin` to this one; both must be over.
    [[nodiscard]] Result<double> seconds_since(const CudaEvent& begin) const;

private:
    explicit CudaEvent(CUevent_st* handle) : handle_(handle) {}
    CUevent_st* handle_;
};

}  // namespace sluice

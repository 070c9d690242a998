#include "runtime/cuda/cuda_device_stream.h"

#include "runtime/cuda/block_quantise.h"
#include "runtime/cuda/copy_kernels.h"
#include "runtime/cuda/cuda_program.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/cuda/stream.h"
#include "runtime/services/log.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>
#include <utility>

namespace sluice {
namespace {

using Clock = Deadline::Clock;

// A layer's kernels take some 100 us; who waits longer sleeps in between.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr auto kNap = std::chrono::microseconds(50);

class CudaDeviceStream final : public DeviceStream {
public:
    CudaDeviceStream(int ordinal, CudaStream stream, CudaEvent event)
        : ordinal_(ordinal), stream_(std::move(stream)), event_(std::move(event)) {}

    ~CudaDeviceStream() override {
        if (const Status ended = wait(Deadline::never()); !ended.ok()) {
            log::error("{}", ended.message());
        }
    }
    CudaDeviceStream(const CudaDeviceStream&) = delete;
    CudaDeviceStream& operator=(const CudaDeviceStream&) = delete;

    [[nodiscard]] void* handle() const override { return stream_.handle(); }

    Status run(const DeviceProgram& program, const Device::Bases& bases) override {
        SLUICE_RETURN_IF_ERROR(use_device());
        return launch_copy(static_cast<const CudaProgram&>(program).view, {bases.wire, bases.gathered}, nullptr,
                           stream_.handle());
    }

    Status quantise(const BlockQuantisation& job) override {
        SLUICE_RETURN_IF_ERROR(use_device());
        return launch_quantise(job, stream_.handle());
    }

    Status follow(void* other) override { return order(static_cast<cudaStream_t>(other), stream_.handle()); }
    Status precede(void* other) override { return order(stream_.handle(), static_cast<cudaStream_t>(other)); }

    Status wait(Deadline deadline) override {
        SLUICE_RETURN_IF_ERROR(use_device());
        const Clock::time_point begin = Clock::now();
        for (cudaError_t state = cudaStreamQuery(stream_.handle()); state != cudaSuccess;
             state = cudaStreamQuery(stream_.handle())) {
            if (!not_ready(state)) {
                return from_cuda(state, "work that was launched on a background stream");
            }
            const Clock::time_point now = Clock::now();
            if (now >= deadline.when()) {
                return deadline_exceeded("what was launched on a background stream has not ended in time");
            }
            if (now - begin < kSpin) {
                std::this_thread::yield();
            } else {
                std::this_thread::sleep_for(kNap);
            }
        }
        return ok_status();
    }

private:
    Status use_device() const { return from_cuda(cudaSetDevice(ordinal_), "selecting a CUDA device"); }

    // An event may be recorded again at once: who waits for it waits for what was recorded at that moment.
    Status order(cudaStream_t first, cudaStream_t then) {
        SLUICE_RETURN_IF_ERROR(use_device());
        SLUICE_RETURN_IF_ERROR(from_cuda(cudaEventRecord(event_.handle(), first), "recording an event on a stream"));
        return from_cuda(cudaStreamWaitEvent(then, event_.handle(), 0), "having a stream wait for another one");
    }

    int ordinal_;
    CudaStream stream_;
    CudaEvent event_;
};

}  // namespace

Result<std::unique_ptr<DeviceStream>> make_cuda_device_stream(int ordinal) {
    SLUICE_RETURN_IF_ERROR(load_quantise_kernels());
    SLUICE_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::create());
    SLUICE_ASSIGN_OR_RETURN(CudaEvent event, CudaEvent::create());
    return std::unique_ptr<DeviceStream>(
        std::make_unique<CudaDeviceStream>(ordinal, std::move(stream), std::move(event)));
}

}  // namespace sluice

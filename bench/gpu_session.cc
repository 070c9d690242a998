#include "bench/gpu_session.h"

#include "transport/ucx/ucx_transport.h"

namespace sluice::bench {

Result<std::unique_ptr<Session>> open_gpu_session(const Settings& settings, Device& device,
                                                  std::span<std::byte> probe) {
    return Session::open(
        settings,
        [&settings, probe](EventLoop& loop) {
            return transport::open_ucx_transport(loop, {settings.ucx, settings.show_ucx_log, probe, MemoryKind::kCuda});
        },
        &device);
}

}  // namespace sluice::bench

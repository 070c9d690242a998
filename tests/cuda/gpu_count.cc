#include "tests/cuda/gpu_count.h"

#include "runtime/cuda/cuda_probe.h"
#include "tests/support/forked_peers.h"

#include <fmt/format.h>

namespace sluice::test {

std::string why_not_gpus(int count) {
    ForkedPeers asking(1, [count](PeerChannel& channel) {
        const CudaState state = probe_cuda();
        std::string why = state.problem;
        if (const auto there = static_cast<int>(state.devices.size()); why.empty() && there < count) {
            why = fmt::format("this needs {} GPUs, and there are {}", count, there);
        }
        channel.send_to_test(to_blob(why));
        return 0;
    });
    const auto answer = asking.receive(0);
    asking.wait(0);
    return answer ? to_text(*answer) : std::string("the process that asked for GPUs died");
}

}  // namespace sluice::test

#include "runtime/cuda/cuda_probe.h"

namespace sluice {

CudaState probe_cuda() {
    CudaState state;
    state.problem = "built without CUDA: configure with a CUDA toolkit, or SLUICE_CUDA=ON to see why there is none";
    return state;
}

}  // namespace sluice

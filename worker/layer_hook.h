#pragma once

#include "planner/ids.h"
#include "runtime/base/status.h"
#include "runtime/services/device.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

/// A layer whose last slice has landed. Its buffered parameters lie in load format where LayerHook::prepare was told, until the hooks have ended.
struct LandedLayer {
    std::uint64_t version = 0;
    GroupId group = 0;
    std::span<const ParameterId> parameters;  ///< The buffered ones of this layer, rising.
    /// Launch here: what else is launched does not count as part of the hook. Null: the parameters are in host memory.
    DeviceStream* stream = nullptr;
};

/// Where buffered parameters land, by ParameterId: the same address in every version. Null: not buffered, lands in the store.
/// Parameters of different layers may share an address; each has it to itself from its first slice to the end of its hooks.
using LayerAddresses = std::span<std::byte* const>;

/// Writes what the engine keeps of a layer in a format of its own: quantised, laid out anew, derived. A user's extension point.
///
/// Threads: prepare and run are called on the thread of Worker::create and Worker::sync. Hooks of a worker run one after the other, layers in the order in
/// which they are complete; other layers are pulled meanwhile. With a device, run() launches on the layer's stream and returns; it must not wait for the
/// device, nor free or allocate device memory. The worker waits for the stream before it lets the next layer into the buffer.
/// A hook may change the load format in the buffer. Kernel-format storage is the hook's affair: keep its addresses, and captured CUDA graphs stay valid.
class LayerHook {
public:
    virtual ~LayerHook() = default;

    /// Once, at set-up: for checks, and for programs that are made once. `device`: whose memory the addresses are; null: host memory. An error fails the set-up of
    /// all ranks. Kernels of one's own are best loaded here (cudaFuncGetAttributes): CUDA loads a kernel at its first launch otherwise, and then waits for
    /// whatever runs on the device.
    virtual Status prepare(LayerAddresses addresses, Device* device) = 0;

    /// Once per version and layer that has buffered parameters, after the layer's last slice, from whichever owner it came. An error fails the version on
    /// all ranks; no hook of that version runs after it.
    virtual Status run(const LandedLayer& layer) = 0;
};

}  // namespace sluice

#pragma once

#include "runtime/base/settings.h"
#include "runtime/services/event_loop.h"
#include "transport/transport.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sluice::transport {

struct UcxOptions {
    /// Set on top of UCX's own configuration (Settings::ucx: our defaults where the user's environment has nothing).
    std::vector<UcxSetting> settings;
    /// UCX writes its log lines itself; otherwise they go to our log as debug lines. The first transport of a process decides.
    bool show_log = false;
    /// Memory that links are tried out with; all ranks' of one kind, at least 64 bytes, and it outlives the transport. Empty: host memory. Ranks whose
    /// weights are in GPU memory give memory of the same GPU: a link that was tried out with host memory is refused where it is to carry theirs.
    std::span<std::byte> probe_memory = {};
    MemoryKind probe_kind = MemoryKind::kHost;
    /// The network devices to use, as UCX names them and separated by commas ("mlx5_0:1,mlx5_1:1", "eth0"); a name that there is not
    /// is refused, with those that there are. Empty: what UCX_NET_DEVICES and UCX choose.
    std::string net_devices = {};
    /// Over emulated links a get is answered piece by piece, of at most 60 KiB. Of answers that slow readers do not take at most so many are
    /// kept, 960 MiB; a reader needs 8. Gets beyond that fail.
    int max_answers = 16384;
};

/// Opens a UCX transport on `loop`; called, and later destroyed, on the loop. Refuses a UCX library older than 1.22.
/// `loop` must outlive it.
Result<std::unique_ptr<Transport>> open_ucx_transport(EventLoop& loop, const UcxOptions& options);

}  // namespace sluice::transport

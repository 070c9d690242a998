#pragma once

#include "runtime/base/settings.h"
#include "runtime/base/status.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/services/deadline.h"
#include "runtime/services/device.h"
#include "runtime/services/event_loop.h"
#include "transport/transport.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace sluice::bench {

/// What a link carries with nothing of ours around it: gets of one range, cut as the link wants them, a window of bytes in
/// flight. Between one rank, which is read, and another.
class RawGet {
public:
    /// Collective. `memory` is what is read at rank `owner`, and the destination elsewhere, of the device if there is one; both must outlive
    /// this.
    static Result<std::unique_ptr<RawGet>> create(const Settings& settings, Bootstrap& bootstrap,
                                                  std::span<std::byte> memory, Deadline deadline,
                                                  Device* device = nullptr, int owner = 0);
    /// On the readers first, then on the owner.
    ~RawGet();
    RawGet(const RawGet&) = delete;
    RawGet& operator=(const RawGet&) = delete;

    /// On a reader: reads `bytes` bytes from `begin` on, in pieces of at most `piece` (0: as long as the link takes); the seconds it took.
    Result<double> run(std::int64_t bytes, std::int64_t begin = 0, std::int64_t piece = 0);
    /// CPU time of the thread that all of it runs on, so far. On either side.
    double cpu_seconds();
    /// On a reader, after a run.
    [[nodiscard]] transport::LinkInfo link() const { return link_; }

private:
    class Run;
    explicit RawGet(const Settings& settings);

    std::int64_t window_;
    std::span<std::byte> memory_;
    std::uint64_t remote_address_ = 0;
    transport::LinkInfo link_;
    std::unique_ptr<EventLoop> loop_;
    std::unique_ptr<transport::Transport> transport_;
    std::unique_ptr<transport::MemoryRegion> region_;
    std::unique_ptr<transport::Endpoint> endpoint_;
    std::unique_ptr<transport::RemoteKey> key_;
};

}  // namespace sluice::bench

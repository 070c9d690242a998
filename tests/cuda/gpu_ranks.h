#pragma once

#include "runtime/services/device.h"
#include "tests/exchange/sync_bed.h"
#include "tests/support/forked_peers.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

/// A trainer and a worker, each a process of its own, that share the first GPU of the machine.
namespace sluice::test {

/// Empty, or why there is no GPU. Asked in a process of its own: CUDA must not start in one that forks.
const std::string& why_no_gpu();

/// One trainer, one worker, both on the GPU.
BedOptions gpu_options(RouteOptions::PathChoice path);

/// How a rank opens UCX: with CUDA, and a device of its own for the memory that links are tried out with.
class GpuNetwork {
public:
    GpuNetwork();
    Session::TransportFactory factory();
    Device& device() { return *device_; }

private:
    std::unique_ptr<Device> device_;
    std::optional<Buffer> probe_;
};

/// What a rank does, in its process.
using RankBody = std::function<void(PeerChannel&, BedRank&, Bootstrap&, GpuNetwork&)>;

/// Both ranks at once. Skips the test where there is no GPU.
void run_ranks(const BedOptions& options, const RankBody& body,
               std::chrono::steady_clock::duration limit = std::chrono::seconds(60));

/// In a rank's process; they fail the test there.
void create(BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network);
void sync(BedRank& rank, std::uint64_t version);

}  // namespace sluice::test

#pragma once

#include "runtime/services/buffer.h"
#include "runtime/services/device.h"
#include "tests/cuda/gpu_count.h"
#include "tests/exchange/sync_bed.h"
#include "tests/support/forked_peers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

/// One trainer and one worker, in processes of their own that share the first GPU.
namespace sluice::test {

/// Empty where there is a GPU; else why a test must be skipped.
const std::string& why_no_gpu();

BedOptions gpu_options(RouteOptions::PathChoice path);

/// How a rank opens UCX: with CUDA, and a device of its own for the memory that links are tried out with.
class GpuNetwork {
public:
    GpuNetwork();
    /// `transports`: UCX's.
    Session::TransportFactory factory(const std::string& transports = "tcp,cma,cuda,self");
    Device& device() { return *device_; }

private:
    std::unique_ptr<Device> device_;
    std::optional<Buffer> probe_;
};

/// What a rank does, in its process.
using RankBody = std::function<void(PeerChannel&, BedRank&, Bootstrap&, GpuNetwork&)>;
/// Runs it in both, and `meanwhile` in the test; skips the test where there is no GPU. Has a mesh of its own.
void run_ranks(
    const BedOptions& options, const RankBody& body,
    std::chrono::steady_clock::duration limit = std::chrono::seconds(60),
    const std::function<void(ForkedPeers&)>& meanwhile = [](ForkedPeers&) {});

// Of one rank; they fail the test when something is not ok.
void create(BedRank& rank, Bootstrap& bootstrap, GpuNetwork& network);
/// Prepares, syncs, and checks a worker's parameters.
void sync(BedRank& rank, std::uint64_t version);

}  // namespace sluice::test

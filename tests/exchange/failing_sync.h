#pragma once

#include "tests/exchange/socket_bootstrap.h"
#include "tests/exchange/sync_bed.h"
#include "tests/support/forked_peers.h"

#include <chrono>
#include <cstdint>
#include <string>

/// Ranks of two trainers and two workers, forked, that sync until something is done to them.
namespace sluice::test {

/// A rank that lives has ended this long after the failure.
inline constexpr std::chrono::seconds kSurvivorsEndWithin{4};
/// For one set of ranks, from fork to end.
inline constexpr std::chrono::seconds kFailingSyncLimit{40};

/// Ranks 0 and 1 are trainers, on node 0; 2 and 3 are replicas of a worker, on node 1.
BedOptions failing_sync_options(SourceKind source);

/// Runs one rank. Tells the test "ready" when `good` versions have been synced, which must go well; then syncs until it fails,
/// tells the test "code peer version message", closes, and returns the peer's exit code. `idle`: it does nothing after "ready" until
/// the test says something. Worker parameters are checked after
/// each version, and that the one that failed was not committed.
int sync_until_failure(PeerChannel& channel, const SocketMesh& mesh, const BedOptions& options, const BedModel& model,
                       const Session::TransportFactory& open_transport, std::uint64_t good, bool idle = false);

/// The next sync after a failure: a new set of ranks syncs one version, which must be exact, and ends well. `when` says after what.
void expect_good_sync(const BedOptions& options, const BedModel& model, Network network, const std::string& when);

}  // namespace sluice::test

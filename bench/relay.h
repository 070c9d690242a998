#pragma once

#include "runtime/base/status.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::bench {

/// Bytes that go along a chain of ranks (at least two); each rank passes them on as soon as it has them. A broadcast is one long chain.
struct RelayMessage {
    std::vector<int> chain;
    std::int64_t bytes = 0;
};

/// Where the bytes come from and go to. Messages are numbered by their place in the list.
class RelayEnds {
public:
    virtual ~RelayEnds() = default;
    /// At the head of the chain: the bytes can be had now. Once true it stays true.
    [[nodiscard]] virtual bool ready(std::size_t message) const = 0;
    virtual void fill(std::size_t message, std::span<std::byte> bytes) = 0;
    /// On every later rank of the chain.
    virtual void take(std::size_t message, std::span<const std::byte> bytes) = 0;
};

/// Collective over MPI_COMM_WORLD: moves all messages, started in the order of the list (the same list on every rank), at most
/// `window` of them under way at a rank. Returns when this rank's part is done. `slots` holds window * the largest message.
Status relay(std::span<const RelayMessage> messages, int window, std::span<std::byte> slots, RelayEnds& ends);

}  // namespace sluice::bench

#pragma once

#include "runtime/exchange/bootstrap.h"

#include <memory>
#include <vector>

namespace sluice::test {

/// Bootstraps for ranks that are forked processes of one test: pairs of sockets, made before the fork.
class SocketMesh {
public:
    explicit SocketMesh(int ranks);
    ~SocketMesh();
    SocketMesh(const SocketMesh&) = delete;
    SocketMesh& operator=(const SocketMesh&) = delete;

    /// In the process of `rank`. The mesh must outlive it.
    std::unique_ptr<Bootstrap> bootstrap(int rank) const;

private:
    std::vector<std::vector<int>> sockets_;  // [rank][peer]
};

}  // namespace sluice::test

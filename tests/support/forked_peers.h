#pragma once

#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace sluice::test {

using Blob = std::vector<std::byte>;

Blob to_blob(std::string_view text);
std::string to_text(const Blob& blob);

/// A peer's side of the channels between peers and test. Used in the child, from one thread at a time.
class PeerChannel {
public:
    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int size() const { return static_cast<int>(peers_.size()); }

    /// Every peer calls it the same number of times and gets the blobs of all, by rank; an empty optional stands for a
    /// peer that died. Blobs of any size. Blocks until every peer has called it or died.
    std::vector<std::optional<Blob>> all_gather(const Blob& mine);
    /// Returns when every peer that lives has called it.
    void barrier() { all_gather({}); }
    /// Sends a blob to the test, which gets it from ForkedPeers::receive.
    void send_to_test(const Blob& blob);
    /// Waits for a blob from the test (ForkedPeers::send); empty when the test is gone.
    std::optional<Blob> receive_from_test();

private:
    friend class ForkedPeers;
    int rank_ = 0;
    int test_ = -1;
    std::vector<int> peers_;  // by rank; -1 for itself
};

/// How a peer ended.
struct PeerExit {
    std::optional<int> code;    ///< When it exited.
    std::optional<int> signal;  ///< When a signal ended it.

    [[nodiscard]] bool ok() const { return code == 0; }
    [[nodiscard]] std::string describe() const;
};

/// Runs one function per peer in a process of its own, and reaps them all, whatever happens. Make it before anything
/// in the test starts threads, UCX or CUDA: a fork keeps only the calling thread.
///
///   ForkedPeers peers(3, [](PeerChannel& channel) { ...EXPECT_...; return 0; });
///   peers.kill(1);
///   EXPECT_TRUE(peers.wait_all_ok({1}));
///
/// A peer's exit code is what its body returns, or kFailedExpectations when gtest expectations failed in it or it logged
/// an unexpected warning, or kThrew. A peer dies with the test process.
class ForkedPeers {
public:
    using Clock = std::chrono::steady_clock;
    using Body = std::function<int(PeerChannel&)>;
    static constexpr int kFailedExpectations = 101;
    static constexpr int kThrew = 102;

    /// Forks one peer per body. At `deadline` from now the peers that still run are killed; the exit of such a peer
    /// says so and is not ok.
    explicit ForkedPeers(const std::vector<Body>& bodies, Clock::duration deadline = std::chrono::seconds(30));
    ForkedPeers(int count, const Body& body, Clock::duration deadline = std::chrono::seconds(30));
    /// Kills and reaps what still runs.
    ~ForkedPeers();
    ForkedPeers(const ForkedPeers&) = delete;
    ForkedPeers& operator=(const ForkedPeers&) = delete;

    [[nodiscard]] int size() const { return static_cast<int>(peers_.size()); }
    [[nodiscard]] pid_t pid(int rank) const { return peers_.at(static_cast<std::size_t>(rank)).pid; }
    void send(int rank, const Blob& blob);
    /// The next blob of that peer; empty when it died or the deadline passed.
    std::optional<Blob> receive(int rank);
    /// Sends `signal`. SIGKILL also reaps at once: to others a zombie looks alive.
    void kill(int rank, int signal = SIGKILL);
    /// Waits for the peer's end, at most until the deadline, when it is killed.
    PeerExit wait(int rank);
    /// Waits for all; true when every peer outside `killed` ended well. Adds a gtest failure for each that did not.
    bool wait_all_ok(const std::vector<int>& killed = {});

private:
    struct Peer {
        pid_t pid = -1;
        int channel = -1;
        std::optional<PeerExit> exit;
        bool overdue = false;
    };
    void reap(Peer& peer, int options);

    std::vector<Peer> peers_;
    Clock::time_point deadline_;
};

}  // namespace sluice::test

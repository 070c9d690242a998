#pragma once

#include "runtime/services/event_loop.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

namespace sluice::test {

/// How long a test waits for what should come at once, also on a busy machine under a sanitizer. Both are the program's, as below.
extern const std::chrono::seconds kPatience;
/// For all that forked peers do.
extern const std::chrono::seconds kPeersLimit;

/// What a test runs over.
enum class Network { kFakeOneSided, kFakeEmulated, kUcxTcp, kUcxCma, kUcxRc };

inline std::string to_string(Network network) {
    switch (network) {
        case Network::kFakeOneSided:
            return "FakeOneSided";
        case Network::kFakeEmulated:
            return "FakeEmulated";
        case Network::kUcxTcp:
            return "UcxTcp";
        case Network::kUcxCma:
            return "UcxCma";
        case Network::kUcxRc:
            return "UcxRc";
    }
    return "unknown";
}
inline void PrintTo(Network network, std::ostream* out) { *out << to_string(network); }

inline bool is_ucx(Network network) { return network != Network::kFakeOneSided && network != Network::kFakeEmulated; }

inline transport::LinkClass expected_class(Network network) {
    return network == Network::kUcxTcp || network == Network::kFakeEmulated ? transport::LinkClass::kEmulated
                                                                            : transport::LinkClass::kOneSided;
}

// What follows depends on the program: local_networks.cc stands for this host alone, tests/rdma/rc_network.cc for two nodes with verbs.

/// UCX's networks that this program's tests run over.
std::vector<Network> ucx_networks();
/// The same, and the fakes where the program tests those too.
std::vector<Network> all_networks();
transport::UcxOptions ucx_options(Network network);
/// The transport of a link over `network`, as UCX names it.
std::string link_name(Network network);
/// How long it may take until the death of a peer is noticed: without heartbeats, which are the exchange's.
std::chrono::milliseconds death_noticed_within(Network network);
/// Puts the calling thread, and those that it makes, onto node 0 or 1. Called in a forked peer before it makes threads.
void enter_node(int node);

/// Counts and remembers ends. Waiting is for threads other than the loop.
class CountedCompletion final : public transport::Completion {
public:
    void complete(const Status& status) override {
        // Told under the lock: whoever waits may destroy us.
        const std::lock_guard<std::mutex> lock(mutex_);
        ++count_;
        (status.ok() ? succeeded_ : failed_)++;
        status_ = status;
        condition_.notify_all();
    }

    /// True when `count` ends have been told in time.
    [[nodiscard]] bool wait_for(int count = 1, std::chrono::nanoseconds patience = kPatience) {
        std::unique_lock<std::mutex> lock(mutex_);
        return condition_.wait_for(lock, patience, [&] { return count_ >= count; });
    }
    [[nodiscard]] int count() const { return locked(count_); }
    [[nodiscard]] int succeeded() const { return locked(succeeded_); }
    [[nodiscard]] int failed() const { return locked(failed_); }
    /// Of the last end.
    [[nodiscard]] Status status() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return status_;
    }

private:
    [[nodiscard]] int locked(const int& value) const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return value;
    }

    mutable std::mutex mutex_;
    std::condition_variable condition_;
    int count_ = 0;
    int succeeded_ = 0;
    int failed_ = 0;
    Status status_;
};

/// Byte `i` of a pattern.
inline std::byte pattern(std::uint64_t seed, std::size_t i) {
    return static_cast<std::byte>((seed + i) * 0x9E3779B97F4A7C15ULL >> 56);
}
inline std::vector<std::byte> pattern_bytes(std::uint64_t seed, std::size_t size) {
    std::vector<std::byte> out(size);
    for (std::size_t i = 0; i < size; ++i) {
        out[i] = pattern(seed, i);
    }
    return out;
}

}  // namespace sluice::test

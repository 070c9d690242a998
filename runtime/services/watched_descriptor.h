#pragma once

#include "runtime/services/asio.h"
#include "runtime/services/handler_memory.h"

namespace sluice {

/// Makes an io_context return from waiting when a descriptor becomes readable. It only takes note of that; what is to be
/// done is up to whoever asks fired(). One thread.
class WatchedDescriptor {
public:
    enum class Owner { kUs, kSomebodyElse };

    /// Throws std::system_error when the descriptor cannot be waited for. With Owner::kUs it is closed in the end.
    WatchedDescriptor(boost::asio::io_context& io, int descriptor, Owner owner);
    /// stop() must have been called, and the io_context polled since.
    ~WatchedDescriptor();
    WatchedDescriptor(const WatchedDescriptor&) = delete;
    WatchedDescriptor& operator=(const WatchedDescriptor&) = delete;

    /// Starts a wait unless one is outstanding.
    void watch();
    /// True once for each wait that ended with the descriptor readable.
    bool take_fired() { return std::exchange(fired_, false); }
    /// Ends the outstanding wait; the io_context delivers that end.
    void stop();
    [[nodiscard]] bool waiting() const { return waiting_; }
    [[nodiscard]] int descriptor() { return descriptor_.native_handle(); }

private:
    struct Handler;

    HandlerMemory memory_;
    boost::asio::posix::stream_descriptor descriptor_;
    Owner owner_;
    bool waiting_ = false;
    bool fired_ = false;
};

}  // namespace sluice

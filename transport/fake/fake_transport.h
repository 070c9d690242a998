#pragma once

#include "runtime/services/event_loop.h"
#include "transport/transport.h"

#include <cstdint>
#include <memory>

/// A network inside one process, for tests: the behaviour of the UCX transport without UCX, with speed and faults to order.
namespace sluice::transport {

/// Names one transport of a fabric.
using FakeId = std::uint64_t;

/// How bytes travel from one transport to another.
struct FakeLink {
    EventLoop::Clock::duration latency{0};  ///< Of each get and each message.
    double bytes_per_second = 0;            ///< Of a reader's gets together; 0 is unlimited.
    /// An emulated get waits until the owner's loop has run; a one-sided one does not need it.
    LinkClass link_class = LinkClass::kOneSided;
};

/// What its transports share. It must outlive them and their loops. Any thread; a fault takes effect on the loops
/// concerned soon after.
class FakeFabric {
public:
    FakeFabric();
    ~FakeFabric();
    FakeFabric(const FakeFabric&) = delete;
    FakeFabric& operator=(const FakeFabric&) = delete;

    struct Opened {
        FakeId id;
        std::unique_ptr<Transport> transport;
    };
    /// A new transport, which lives on `loop`: it is opened and destroyed there.
    Opened open(EventLoop& loop);

    /// For every pair of transports that has no link of its own.
    void set_default_link(const FakeLink& link);
    /// For the messages and gets that `owner` serves to `reader`.
    void set_link(FakeId owner, FakeId reader, const FakeLink& link);

    /// Takes memory that is called a device's, for tests whose devices are imitations. Before any is registered. Links say that they were tried out
    /// with `probed`.
    void allow_device_memory(MemoryKind probed = MemoryKind::kCuda);

    /// The nth get that `reader` starts from now on (1 is the next one) ends with an error.
    void fail_get(FakeId reader, int nth);
    /// The next `count` messages from `from` to `to` are lost.
    void drop_messages(FakeId from, FakeId to, int count);
    /// As if the process died: it sends and serves nothing more, gets from it fail, and endpoints to it are told.
    void kill(FakeId id);
    /// As if the process hung: its loop serves no emulated gets and hands out no messages until it is thawed.
    void freeze(FakeId id, bool frozen);

    /// Gets that have ended well since the start, of all transports.
    [[nodiscard]] std::uint64_t gets_done() const;

    struct Impl;

private:
    std::shared_ptr<Impl> impl_;
};

}  // namespace sluice::transport

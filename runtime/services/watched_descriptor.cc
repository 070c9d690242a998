#include "runtime/services/watched_descriptor.h"

#include <cassert>

namespace sluice {

struct WatchedDescriptor::Handler {
    using allocator_type = HandlerAllocator<void>;

    [[nodiscard]] allocator_type get_allocator() const { return allocator_type(self->memory_); }
    void operator()(const boost::system::error_code& error) const {
        self->waiting_ = false;
        self->fired_ = !error;
    }

    WatchedDescriptor* self;
};

WatchedDescriptor::WatchedDescriptor(boost::asio::io_context& io, int descriptor, Owner owner)
    : descriptor_(io, descriptor), owner_(owner) {}

WatchedDescriptor::~WatchedDescriptor() {
    assert(!waiting_);
    // Somebody else's descriptor (UCX closes its own) must not be closed by Asio.
    if (owner_ == Owner::kSomebodyElse && descriptor_.is_open()) {
        descriptor_.release();
    }
}

void WatchedDescriptor::watch() {
    if (!waiting_) {
        waiting_ = true;
        descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read, Handler{this});
    }
}

void WatchedDescriptor::stop() {
    if (descriptor_.is_open()) {
        boost::system::error_code ignored;
        descriptor_.cancel(ignored);
    }
}

}  // namespace sluice

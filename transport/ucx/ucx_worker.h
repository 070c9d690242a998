#pragma once

#include "runtime/base/status.h"

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace sluice::transport {

/// A UCP worker: everything that communicates. Used by the one thread that made it. Dies before its context.
class UcxWorker {
public:
    static Result<UcxWorker> open(ucp_context_h context);

    [[nodiscard]] ucp_worker_h handle() const { return handle_.get(); }
    [[nodiscard]] int event_fd() const { return event_fd_; }
    [[nodiscard]] std::size_t max_header_bytes() const { return max_header_bytes_; }
    [[nodiscard]] const std::vector<std::byte>& address() const { return address_; }

    Status set_message_handler(unsigned id, ucp_am_recv_callback_t callback, void* argument);

private:
    struct Destroy {
        void operator()(ucp_worker_h handle) const { ucp_worker_destroy(handle); }
    };
    explicit UcxWorker(ucp_worker_h handle) : handle_(handle) {}
    std::unique_ptr<ucp_worker, Destroy> handle_;
    int event_fd_ = -1;  // UCX's, which closes it.
    std::size_t max_header_bytes_ = 0;
    std::vector<std::byte> address_;
};

}  // namespace sluice::transport

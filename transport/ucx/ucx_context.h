#pragma once

#include "runtime/base/settings.h"
#include "runtime/base/status.h"

#include <ucp/api/ucp.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sluice::transport {

/// A UCP context: the devices and the registered memory of one transport.
class UcxContext {
public:
    /// `settings` are applied on top of UCX's own configuration, environment included.
    static Result<UcxContext> open(std::span<const UcxSetting> settings);

    [[nodiscard]] ucp_context_h handle() const { return handle_.get(); }
    /// What it could communicate with, "tcp/eth0" or "cma/memory": transport and device. In UCX's order, each once.
    [[nodiscard]] std::vector<std::string> transports() const;
    /// Bit mask of UCS_BIT(ucs_memory_type_t).
    [[nodiscard]] std::uint64_t memory_types() const;

private:
    struct Cleanup {
        void operator()(ucp_context_h handle) const { ucp_cleanup(handle); }
    };
    explicit UcxContext(ucp_context_h handle) : handle_(handle) {}
    std::unique_ptr<ucp_context, Cleanup> handle_;
};

}  // namespace sluice::transport

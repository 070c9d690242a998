#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>

namespace sluice::transport {

inline void set_flags(ucp_request_param_t& params, std::uint32_t flags) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = flags;
}

/// For messages. UCX would otherwise ask CUDA what memory the payload is, even of an empty one: about 10 us.
inline void set_host_memory(ucp_request_param_t& params) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.memory_type = UCS_MEMORY_TYPE_HOST;
}

}  // namespace sluice::transport

#include "transport/ucx/ucx_remote_key.h"

#include "transport/ucx/ucx_log.h"
#include "transport/ucx/ucx_status.h"

#include <fmt/format.h>

namespace sluice::transport {

Result<std::unique_ptr<UcxRemoteKey>> UcxRemoteKey::open(ucp_ep_h endpoint, const UcxKeyFields& fields, int peer) {
    std::unique_ptr<UcxRemoteKey> key(new UcxRemoteKey(fields));
    if (fields.size > 0) {
        take_ucx_error();
        ucp_rkey_h handle = nullptr;
        if (const ucs_status_t status = ucp_ep_rkey_unpack(endpoint, fields.ucx.data(), &handle); status != UCS_OK) {
            return from_ucs(status,
                            fmt::format("taking a key to {} bytes of {} memory of rank {}{}; no transport of this link "
                                        "can read it",
                                        fields.size, to_string(fields.kind), peer, take_ucx_error()),
                            peer);
        }
        key->handle_.reset(handle);
    }
    return key;
}

}  // namespace sluice::transport

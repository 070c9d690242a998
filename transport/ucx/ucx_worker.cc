#include "transport/ucx/ucx_worker.h"

#include "transport/ucx/locked_memory.h"
#include "transport/ucx/ucx_log.h"
#include "transport/ucx/ucx_status.h"

namespace sluice::transport {
namespace {

void set_thread_mode(ucp_worker_params_t& params, ucs_thread_mode_t mode) {
    params.field_mask |= UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = mode;
}

void set_id(ucp_am_handler_param_t& params, unsigned id) {
    params.field_mask |= UCP_AM_HANDLER_PARAM_FIELD_ID;
    params.id = id;
}

void set_callback(ucp_am_handler_param_t& params, ucp_am_recv_callback_t callback, void* argument) {
    params.field_mask |= UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    params.cb = callback;
    params.arg = argument;
}

}  // namespace

Result<UcxWorker> UcxWorker::open(ucp_context_h context) {
    take_ucx_error();
    ucp_worker_params_t params{};
    set_thread_mode(params, UCS_THREAD_MODE_SINGLE);
    ucp_worker_h handle = nullptr;
    if (const ucs_status_t status = ucp_worker_create(context, &params, &handle); status != UCS_OK) {
        return from_ucs(status, "making a UCX worker" + take_ucx_error() + locked_memory_hint());
    }
    UcxWorker worker(handle);
    if (const ucs_status_t status = ucp_worker_get_efd(handle, &worker.event_fd_); status != UCS_OK) {
        return from_ucs(status, "asking UCX for an event descriptor" + take_ucx_error() +
                                    "; one of the transports in UCX_TLS cannot be slept on");
    }
    ucp_worker_attr_t attributes{};
    attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER | UCP_WORKER_ATTR_FIELD_ADDRESS;
    if (const ucs_status_t status = ucp_worker_query(handle, &attributes); status != UCS_OK) {
        return from_ucs(status, "asking UCX for its address" + take_ucx_error());
    }
    worker.max_header_bytes_ = attributes.max_am_header;
    const auto* bytes = reinterpret_cast<const std::byte*>(attributes.address);
    worker.address_.assign(bytes, bytes + attributes.address_length);
    ucp_worker_release_address(handle, attributes.address);
    return worker;
}

Status UcxWorker::set_message_handler(unsigned id, ucp_am_recv_callback_t callback, void* argument) {
    ucp_am_handler_param_t params{};
    set_id(params, id);
    set_callback(params, callback, argument);
    return from_ucs(ucp_worker_set_am_recv_handler(handle(), &params), "setting UCX's message handler");
}

}  // namespace sluice::transport

#include "transport/ucx/ucx_endpoint.h"

#include "runtime/services/log.h"
#include "transport/ucx/link_classifier.h"
#include "transport/ucx/ucx_log.h"
#include "transport/ucx/ucx_request_param.h"
#include "transport/ucx/ucx_status.h"
#include "transport/ucx/ucx_transport_impl.h"

#include <fmt/format.h>

#include <cassert>
#include <utility>

namespace sluice::transport {
namespace {

void set_address(ucp_ep_params_t& params, std::span<const std::byte> address) {
    params.field_mask |= UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
}

// Without peer error mode, a get from a dead peer may never end.
void set_error_handling(ucp_ep_params_t& params, ucp_err_handler_cb_t callback, void* argument) {
    params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {callback, argument};
}

void set_local_region(ucp_request_param_t& params, const UcxMemoryRegion& region) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.memh = region.handle();
    params.memory_type = to_ucs(region.kind());
}

}  // namespace

UcxEndpoint::UcxEndpoint(UcxTransport& transport, int peer, PeerLostHandler on_lost)
    : transport_(transport),
      id_(transport.add(*this)),
      peer_(peer),
      on_lost_(std::move(on_lost)),
      served_(transport.operations(), *this, id_) {}

UcxEndpoint::~UcxEndpoint() {
    if (handle_ != nullptr || in_flight_ > 0 || closing_requests_ > 0) {
        closers_.clear();  // Whoever waits for the end of this endpoint is the one who destroys it.
        abandon();
        while (step_ != Step::kClosed) {
            transport_.progress();
        }
    }
    transport_.forget(*this);
}

Status UcxEndpoint::open(const UcxAddressFields& address) {
    SLUICE_ASSIGN_OR_RETURN(const UcxKeyFields probe, decode_key(address.probe_key));
    probed_with_ = probe.kind == transport_.probe_target().kind() ? probe.kind : MemoryKind::kHost;
    take_ucx_error();
    ucp_ep_params_t params{};
    set_address(params, address.ucx);
    set_error_handling(params, on_error, this);
    if (const ucs_status_t status = ucp_ep_create(transport_.worker(), &params, &handle_); status != UCS_OK) {
        handle_ = nullptr;
        return from_ucs(status,
                        fmt::format("connecting to rank {}{}; both sides need a transport in common (UCX_TLS, "
                                    "UCX_NET_DEVICES)",
                                    peer_, take_ucx_error()),
                        peer_);
    }
    SLUICE_ASSIGN_OR_RETURN(probe_key_, UcxRemoteKey::open(handle_, probe, peer_));
    if (probe_key_->size() < UcxTransport::kProbeBytes) {
        return invalid_argument(
            fmt::format("rank {} runs another version of Sluice: its probe has {} bytes", peer_, probe_key_->size()));
    }
    start_probe();
    return ok_status();
}

// Whatever UCX says it was: when the device itself fails, what ends is "canceled".
Status UcxEndpoint::loss(const std::string& what) const {
    return {StatusCode::kPeerLost, from_ucs(*lost_, what, peer_).message(), peer_};
}

Status UcxEndpoint::refusal() const {
    if (lost_) {
        return loss(fmt::format("rank {} is lost", peer_));
    }
    if (step_ != Step::kOpen) {
        return {StatusCode::kAborted, fmt::format("the endpoint to rank {} was closed", peer_), peer_};
    }
    return ok_status();
}

void UcxEndpoint::refuse(UcxOperation& operation, Status why) {
    operation.refusal = std::move(why);
    transport_.operations().ended(operation, UCS_OK);
}

void UcxEndpoint::get(std::byte* local, std::size_t size, const MemoryRegion& region, std::uint64_t remote_address,
                      const RemoteKey& key, Completion& completion) {
    assert(transport_.loop().on_loop_thread());
    assert(size > 0 && local >= region.data() && local + size <= region.data() + region.size());
    UcxOperation& operation = transport_.operations().take(UcxOperation::Kind::kGet, *this, &completion);
    ++in_flight_;
    if (lost_ || step_ != Step::kOpen) {
        refuse(operation, refusal());
        return;
    }
    const auto& remote = static_cast<const UcxRemoteKey&>(key);
    if (!remote.covers(remote_address, size)) {
        refuse(operation, invalid_argument(fmt::format("get of {} bytes at {:#x} is outside of the region of rank {}, "
                                                       "{} bytes at {:#x}",
                                                       size, remote_address, peer_, remote.size(), remote.address())));
        return;
    }
    operation.local = local;
    operation.size = size;
    operation.region = remote.id();
    operation.remote_address = remote_address;
    if (region.kind() == MemoryKind::kCuda) {
        operation.device_memory = true;
        transport_.count_device_gets(1);
    }
    if (link_ && link_->link_class == LinkClass::kEmulated && !operation.device_memory) {
        served_.start(operation, handle_);
        return;
    }
    ucp_request_param_t params = OperationQueue::parameters(operation);
    set_local_region(params, static_cast<const UcxMemoryRegion&>(region));
    if (operation.device_memory) {
        params.op_attr_mask |= UCP_OP_ATTR_FLAG_MULTI_SEND;  // many are in flight: bandwidth counts
    }
    // Into host memory UCX would then choose reads into buffers of its own and a copy by this processor wherever that is no slower than the
    // wire, which is so up to some 40 Gbit/s; without it, it chooses reads into the registered memory from a few hundred bytes on.
    transport_.operations().started(operation,
                                    ucp_get_nbx(handle_, local, size, remote_address, remote.handle(), &params));
}

void UcxEndpoint::send(std::span<const std::byte> header, std::span<const std::byte> payload, Completion& completion) {
    assert(transport_.loop().on_loop_thread());
    UcxOperation& operation = transport_.operations().take(UcxOperation::Kind::kSend, *this, &completion);
    ++in_flight_;
    if (lost_ || step_ != Step::kOpen) {
        refuse(operation, refusal());
        return;
    }
    if (header.size() + payload.size() > transport_.max_message_bytes()) {
        refuse(operation,
               invalid_argument(fmt::format("a message of {} bytes is over the limit of {}; send it in parts",
                                            header.size() + payload.size(), transport_.max_message_bytes())));
        return;
    }
    ucp_request_param_t params = OperationQueue::parameters(operation);
    set_flags(params, UCP_AM_SEND_FLAG_EAGER);
    set_host_memory(params);
    transport_.operations().started(operation, ucp_am_send_nbx(handle_, UcxTransport::kMessageId, header.data(),
                                                               header.size(), payload.data(), payload.size(), &params));
}

// A get of one byte tells what gets are like on this link: UCX waits until it is connected, and with its emulation
// switched off it then either has a one-sided way or cancels.
void UcxEndpoint::start_probe() {
    UcxOperation& operation = transport_.operations().take(UcxOperation::Kind::kProbe, *this, nullptr);
    ++in_flight_;
    const UcxMemoryRegion& target = transport_.probe_target();
    ucp_request_param_t params = OperationQueue::parameters(operation);
    set_local_region(params, target);
    const ucs_status_ptr_t request =
        ucp_get_nbx(handle_, target.data(), 1, probe_key_->address(), probe_key_->handle(), &params);
    if (UCS_PTR_IS_PTR(request)) {
        probed_ = link_of_get(request);
    }
    transport_.operations().started(operation, request);
}

void UcxEndpoint::probe_ended(ucs_status_t status) {
    if (status == UCS_OK) {
        settle_link(probed_ ? *probed_ : one_sided_link(handle_));
    } else if (status == UCS_ERR_CANCELED && step_ == Step::kOpen && !lost_) {
        settle_link(emulated_link(handle_));
    }
    probe_key_.reset();
}

void UcxEndpoint::settle_link(const LinkInfo& link) {
    link_ = link;
    log::debug("link to rank {}: {}, {}", peer_, link.transport,
               link.link_class == LinkClass::kOneSided ? "one-sided" : "emulated (a get needs the owner's CPU)");
}

UcxOperation& UcxEndpoint::take_request() {
    ++in_flight_;
    return transport_.operations().take(UcxOperation::Kind::kRequest, *this, nullptr);
}

void UcxEndpoint::answered(const ServedAnswer& answer, std::span<const std::byte> bytes) {
    served_.answered(answer.ticket, answer.status, bytes, handle_);
}

Result<std::unique_ptr<RemoteKey>> UcxEndpoint::unpack_key(std::span<const std::byte> packed) {
    assert(transport_.loop().on_loop_thread());
    SLUICE_RETURN_IF_ERROR(refusal());
    SLUICE_ASSIGN_OR_RETURN(const UcxKeyFields fields, decode_key(packed));
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<UcxRemoteKey> key, UcxRemoteKey::open(handle_, fields, peer_));
    return std::unique_ptr<RemoteKey>(std::move(key));
}

LinkInfo UcxEndpoint::link() const {
    LinkInfo info = link_ ? *link_ : probed_ ? *probed_ : handle_ != nullptr ? emulated_link(handle_) : LinkInfo{};
    info.probed = probed_with_;
    return info;
}

Status UcxEndpoint::status_of(const UcxOperation& operation) const {
    if (!operation.refusal.ok()) {
        return operation.refusal;
    }
    if (operation.status == UCS_OK) {
        return ok_status();
    }
    if (operation.status == UCS_ERR_NO_RESOURCE && operation.asked > 0) {
        return {
            StatusCode::kResourceExhausted,
            fmt::format("reading from rank {}: it keeps too many answers that its readers do not take; read from it "
                        "with fewer ranks at a time, or over links with one-sided reads",
                        peer_),
            peer_};
    }
    const Status status = from_ucs(
        operation.status,
        fmt::format("{} rank {}", operation.kind == UcxOperation::Kind::kSend ? "sending to" : "reading from", peer_),
        peer_);
    return lost_ && status.code() == StatusCode::kAborted ? Status(StatusCode::kPeerLost, status.message(), peer_)
                                                          : status;
}

void UcxEndpoint::operation_ended(UcxOperation& operation) {
    switch (operation.kind) {
        case UcxOperation::Kind::kGet:
            // Started before it was known that this link has no one-sided gets.
            if (operation.status == UCS_ERR_CANCELED && operation.asked == 0 && !lost_ && handle_ != nullptr &&
                !force_ && !operation.device_memory) {
                served_.start(operation, handle_);
                return;
            }
            [[fallthrough]];
        case UcxOperation::Kind::kSend: {
            if (operation.device_memory) {
                transport_.count_device_gets(-1);
            }
            Completion* completion = operation.completion;
            const Status status = status_of(operation);
            transport_.operations().give_back(operation);
            --in_flight_;
            if (step_ != Step::kOpen) {
                transport_.mark_closing(*this);  // Before the callback, after which we may be gone.
            }
            completion->complete(status);
            return;
        }
        case UcxOperation::Kind::kProbe: {
            const ucs_status_t status = operation.status;
            transport_.operations().give_back(operation);
            --in_flight_;
            probe_ended(status);
            break;
        }
        case UcxOperation::Kind::kRequest: {
            const ucs_status_t status = operation.status;
            const std::uint64_t ticket = operation.region;
            transport_.operations().give_back(operation);
            --in_flight_;
            if (status != UCS_OK) {
                served_.request_failed(ticket, status);
            }
            break;
        }
        case UcxOperation::Kind::kFlush:
        case UcxOperation::Kind::kClose:
            transport_.operations().give_back(operation);
            --closing_requests_;
            break;
    }
    if (step_ != Step::kOpen) {
        transport_.mark_closing(*this);
    }
}

void UcxEndpoint::on_error(void* argument, ucp_ep_h, ucs_status_t status) {
    auto* self = static_cast<UcxEndpoint*>(argument);
    self->lost_ = status;
    self->transport_.mark_lost(*self);
}

void UcxEndpoint::tell_lost() {
    served_.fail_all(*lost_);
    if (step_ != Step::kOpen) {
        advance_close();
    } else if (on_lost_) {
        // A copy, since the endpoint may be destroyed by its own handler.
        const PeerLostHandler on_lost = on_lost_;
        on_lost(loss("its link failed"));
    }
}

void UcxEndpoint::close(bool force, Completion& completion) {
    assert(transport_.loop().on_loop_thread());
    closers_.push_back(&completion);
    start_closing(force);
}

void UcxEndpoint::abandon() { start_closing(/*force=*/true); }

void UcxEndpoint::start_closing(bool force) {
    force_ = force_ || force;
    if (step_ == Step::kOpen) {
        step_ = Step::kDraining;
    }
    transport_.mark_closing(*this);
}

void UcxEndpoint::close_handle(bool force) {
    UcxOperation& operation = transport_.operations().take(UcxOperation::Kind::kClose, *this, nullptr);
    ++closing_requests_;
    ucp_request_param_t params = OperationQueue::parameters(operation);
    set_flags(params, force ? UCP_EP_CLOSE_FLAG_FORCE : 0);
    step_ = Step::kClosing;
    const ucp_ep_h handle = std::exchange(handle_, nullptr);  // Dead from here on, whatever the outcome.
    transport_.operations().started(operation, ucp_ep_close_nbx(handle, &params));
}

void UcxEndpoint::advance_close() {
    if (step_ == Step::kDraining || step_ == Step::kFlushing) {
        if (force_ || lost_) {
            served_.fail_all(lost_.value_or(UCS_ERR_CANCELED));
            if (handle_ != nullptr) {
                close_handle(/*force=*/true);
            } else {
                step_ = Step::kClosing;  // It never came to be.
            }
        } else if (in_flight_ == 0 && closing_requests_ == 0) {
            if (step_ == Step::kDraining) {
                // Flushing apart from closing, because until the close itself has begun it can still be forced.
                step_ = Step::kFlushing;
                UcxOperation& operation = transport_.operations().take(UcxOperation::Kind::kFlush, *this, nullptr);
                ++closing_requests_;
                ucp_request_param_t params = OperationQueue::parameters(operation);
                transport_.operations().started(operation, ucp_ep_flush_nbx(handle_, &params));
            } else {
                close_handle(/*force=*/false);
            }
        }
    }
    if (step_ == Step::kClosing && in_flight_ == 0 && closing_requests_ == 0) {
        step_ = Step::kClosed;
        probe_key_.reset();
    }
    if (step_ == Step::kClosed) {
        const std::vector<Completion*> closers = std::exchange(closers_, {});
        for (Completion* closer : closers) {
            closer->complete(ok_status());  // The last one may destroy us.
        }
    }
}

}  // namespace sluice::transport

#include "transport/ucx/served_gets.h"

#include "transport/sealed.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_request_param.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace sluice::transport {
namespace {

template <std::size_t kCount>
void encode(const std::array<std::uint64_t, kCount>& values, std::span<std::byte> out) {
    for (std::size_t i = 0; i < kCount * 8; ++i) {
        out[i] = static_cast<std::byte>(values[i / 8] >> 8 * (i % 8));
    }
}

// Endpoint, ticket, region, address, size.
constexpr std::size_t kRequestBytes = 40;
// Endpoint, ticket, status.
constexpr std::size_t kAnswerBytes = 24;

void encode_answer(std::uint64_t endpoint, std::uint64_t ticket, ucs_status_t status, std::span<std::byte> out) {
    encode<3>({endpoint, ticket, static_cast<std::uint64_t>(static_cast<std::int64_t>(status))}, out);
}

ucp_request_param_t answer_parameters(ucp_send_nbx_callback_t callback, void* user_data) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_MULTI_SEND;
    params.cb.send = callback;
    params.user_data = user_data;
    set_host_memory(params);
    return params;
}

}  // namespace

void ServedGets::start(UcxOperation& get, ucp_ep_h handle) {
    get.asked = 0;
    get.arrived = 0;
    gets_.push_back(get);
    ask(handle);
}

void ServedGets::ask(ucp_ep_h handle) {
    // In order, so that those that are asked for completely are the first few.
    auto get = gets_.begin();
    for (std::size_t slot = 0; slot < kWindow; ++slot) {
        while (get != gets_.end() && get->asked == get->size) {
            ++get;
        }
        if (get == gets_.end()) {
            return;
        }
        Fragment& fragment = fragments_[slot];
        if (fragment.get != nullptr) {
            continue;
        }
        fragment.get = &*get;
        fragment.offset = get->asked;
        fragment.size = std::min(kServedFragmentBytes, get->size - get->asked);
        get->asked += fragment.size;

        const std::uint64_t asked_with = ticket(slot, fragment.generation);
        UcxOperation& request = endpoint_.take_request();
        request.region = asked_with;
        std::array<std::byte, kRequestBytes> header;
        encode<5>({id_, asked_with, get->region, get->remote_address + fragment.offset, fragment.size}, header);
        ucp_request_param_t params = OperationQueue::parameters(request);
        set_flags(params, UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_COPY_HEADER);
        operations_.started(
            request, ucp_am_send_nbx(handle, kServedRequestId, header.data(), header.size(), nullptr, 0, &params));
    }
}

ServedGets::Fragment* ServedGets::find(std::uint64_t ticket) {
    Fragment& fragment = fragments_[ticket % kWindow];
    return fragment.get != nullptr && fragment.generation == ticket / kWindow ? &fragment : nullptr;
}

void ServedGets::release(Fragment& fragment) {
    fragment.get = nullptr;
    ++fragment.generation;
}

void ServedGets::answered(std::uint64_t ticket, ucs_status_t status, std::span<const std::byte> bytes,
                          ucp_ep_h handle) {
    Fragment* fragment = find(ticket);
    if (fragment == nullptr) {
        return;
    }
    UcxOperation& get = *fragment->get;
    if (status != UCS_OK || bytes.size() != fragment->size) {
        fail(get, status != UCS_OK ? status : UCS_ERR_MESSAGE_TRUNCATED);
    } else {
        std::memcpy(get.local + fragment->offset, bytes.data(), bytes.size());
        get.arrived += bytes.size();
        release(*fragment);
        if (get.arrived == get.size) {
            gets_.erase(gets_.iterator_to(get));
            operations_.ended(get, UCS_OK);
        }
    }
    ask(handle);
}

void ServedGets::request_failed(std::uint64_t ticket, ucs_status_t status) {
    if (Fragment* fragment = find(ticket)) {
        fail(*fragment->get, status);
    }
}

void ServedGets::fail(UcxOperation& get, ucs_status_t status) {
    for (Fragment& fragment : fragments_) {
        if (fragment.get == &get) {
            release(fragment);
        }
    }
    gets_.erase(gets_.iterator_to(get));
    operations_.ended(get, status);
}

void ServedGets::fail_all(ucs_status_t status) {
    while (!gets_.empty()) {
        fail(gets_.front(), status);
    }
}

Status GetServer::open(UcxWorker& worker) { return worker.set_message_handler(kServedRequestId, on_request, this); }

ucs_status_t GetServer::on_request(void* argument, const void* header, std::size_t header_size, void*, std::size_t,
                                   const ucp_am_recv_param_t* param) {
    auto* self = static_cast<GetServer*>(argument);
    if (header_size != kRequestBytes || (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) {
        self->malformed_.note(header_size, "are no request for memory");
        return UCS_OK;
    }
    self->serve({static_cast<const std::byte*>(header), header_size}, param->reply_ep);
    return UCS_OK;
}

// UCX vouches for `reply_to` during the call only, so the answer is started at once and nothing is kept for later.
void GetServer::serve(std::span<const std::byte> request, ucp_ep_h reply_to) {
    std::uint64_t endpoint = 0;
    std::uint64_t ticket = 0;
    std::uint64_t id = 0;
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    take_u64(request, endpoint);
    take_u64(request, ticket);
    take_u64(request, id);
    take_u64(request, address);
    take_u64(request, size);

    if (in_use_ >= max_answers_) {
        refuse(endpoint, ticket, reply_to);
        return;
    }
    ++in_use_;
    Answer& answer = *answers_.take();
    answer.server = this;

    const UcxMemoryRegion* region = regions_.find(id);
    ucs_status_t status = UCS_OK;
    if (region == nullptr || size > kServedFragmentBytes) {
        status = UCS_ERR_INVALID_ADDR;
    } else if (region->kind() == MemoryKind::kCuda) {
        status = UCS_ERR_UNSUPPORTED;
    } else {
        const auto begin = reinterpret_cast<std::uint64_t>(region->data());
        if (address < begin || size > region->size() || address - begin > region->size() - size) {
            status = UCS_ERR_INVALID_ADDR;
        } else {
            // A copy, since the region may be given up while the answer waits for its reader.
            std::memcpy(answer.bytes.data(), region->data() + (address - begin), size);
        }
    }
    encode_answer(endpoint, ticket, status, answer.header);
    ucp_request_param_t params = answer_parameters(on_sent, &answer);
    set_flags(params, UCP_AM_SEND_FLAG_EAGER);
    const ucs_status_ptr_t sent = ucp_am_send_nbx(reply_to, kServedAnswerId, answer.header.data(), answer.header.size(),
                                                  answer.bytes.data(), status == UCS_OK ? size : 0, &params);
    if (sent == nullptr || UCS_PTR_IS_ERR(sent)) {
        give_back(answer);  // An error is the reader's to notice: its endpoint has one as well.
    }
}

void GetServer::on_sent(void* request, ucs_status_t, void* user_data) {
    auto* answer = static_cast<Answer*>(user_data);
    ucp_request_free(request);
    answer->server->give_back(*answer);
}

// An answer all the same: without one the get would never end.
void GetServer::refuse(std::uint64_t endpoint, std::uint64_t ticket, ucp_ep_h reply_to) {
    if (refusing_ == kMaxRefusals) {
        overflow_.note(kRequestBytes, "ask for memory, since too many readers do not take their answers");
        return;
    }
    ++refusing_;
    std::array<std::byte, kAnswerBytes> header;
    encode_answer(endpoint, ticket, UCS_ERR_NO_RESOURCE, header);
    ucp_request_param_t params = answer_parameters(on_refused, this);
    set_flags(params, UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_COPY_HEADER);
    const ucs_status_ptr_t sent =
        ucp_am_send_nbx(reply_to, kServedAnswerId, header.data(), header.size(), nullptr, 0, &params);
    if (sent == nullptr || UCS_PTR_IS_ERR(sent)) {
        --refusing_;
    }
}

void GetServer::on_refused(void* request, ucs_status_t, void* user_data) {
    ucp_request_free(request);
    --static_cast<GetServer*>(user_data)->refusing_;
}

void GetServer::give_back(Answer& answer) {
    --in_use_;
    answers_.give_back(&answer);
}

bool decode_answer(std::span<const std::byte> header, ServedAnswer& out) {
    std::uint64_t status = 0;
    if (header.size() != kAnswerBytes || !take_u64(header, out.endpoint) || !take_u64(header, out.ticket) ||
        !take_u64(header, status)) {
        return false;
    }
    const auto code = static_cast<std::int64_t>(status);
    out.status = code <= 0 && code > UCS_ERR_LAST ? static_cast<ucs_status_t>(code) : UCS_ERR_INVALID_PARAM;
    return true;
}

}  // namespace sluice::transport

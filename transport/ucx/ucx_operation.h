#pragma once

#include "transport/node_pool.h"
#include "transport/transport.h"

#include <boost/intrusive/list.hpp>
#include <ucp/api/ucp.h>

#include <cassert>
#include <cstddef>
#include <cstdint>

namespace sluice::transport {

class UcxEndpoint;
class OperationQueue;

/// One request to UCX, from its start until its end has been told.
struct UcxOperation : boost::intrusive::list_base_hook<> {
    enum class Kind : std::uint8_t { kGet, kSend, kProbe, kRequest, kFlush, kClose };

    Kind kind = Kind::kGet;
    ucs_status_t status = UCS_OK;
    Status refusal;  // Not ok when it was not handed to UCX at all.
    UcxEndpoint* endpoint = nullptr;
    Completion* completion = nullptr;  // Of gets and sends.
    OperationQueue* queue = nullptr;
    // Of gets, for the case that the owner has to serve them (see ServedGets).
    std::byte* local = nullptr;
    std::size_t size = 0;
    std::uint64_t region = 0;
    std::uint64_t remote_address = 0;
    bool device_memory = false;  // Then nobody can serve it.
    std::size_t asked = 0;
    std::size_t arrived = 0;
    UcxOperation* next = nullptr;       // In the queue of those that have ended.
    UcxOperation* next_free = nullptr;  // In the pool.
};

/// Brings all ends of requests onto one path: UCX tells them in three ways (at once, as an error, by callback within
/// progress), we tell them in one (after progress), so that whoever is told may call anything.
class OperationQueue {
public:
    UcxOperation& take(UcxOperation::Kind kind, UcxEndpoint& endpoint, Completion* completion) {
        UcxOperation& operation = *pool_.take();
        assert(!operation.is_linked());
        operation.status = UCS_OK;
        operation.refusal = {};
        operation.asked = 0;
        operation.arrived = 0;
        operation.device_memory = false;
        operation.kind = kind;
        operation.endpoint = &endpoint;
        operation.completion = completion;
        operation.queue = this;
        return operation;
    }
    void give_back(UcxOperation& operation) { pool_.give_back(&operation); }

    /// What UCX needs to know to tell us the end of `operation`.
    static ucp_request_param_t parameters(UcxOperation& operation) {
        ucp_request_param_t parameters{};
        parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
        parameters.cb.send = on_end;
        parameters.user_data = &operation;
        return parameters;
    }

    /// `result` is what UCX returned when it was asked to start `operation`.
    void started(UcxOperation& operation, ucs_status_ptr_t result) {
        if (result == nullptr || UCS_PTR_IS_ERR(result)) {
            ended(operation, UCS_PTR_STATUS(result));
        }
    }

    void ended(UcxOperation& operation, ucs_status_t status) {
        operation.status = status;
        operation.next = nullptr;
        (last_ == nullptr ? first_ : last_->next) = &operation;
        last_ = &operation;
    }

    /// The operation that ended first, or null.
    UcxOperation* pop() {
        UcxOperation* operation = first_;
        if (operation != nullptr) {
            first_ = operation->next;
            if (first_ == nullptr) {
                last_ = nullptr;
            }
        }
        return operation;
    }
    [[nodiscard]] bool empty() const { return first_ == nullptr; }

private:
    static void on_end(void* request, ucs_status_t status, void* user_data) {
        auto* operation = static_cast<UcxOperation*>(user_data);
        ucp_request_free(request);
        operation->queue->ended(*operation, status);
    }

    // As many as two pull engines have gets in flight, and their messages, so that no sync has to wait for the first peak.
    NodePool<UcxOperation> pool_{1024};
    UcxOperation* first_ = nullptr;
    UcxOperation* last_ = nullptr;
};

}  // namespace sluice::transport

#pragma once

#include "transport/node_pool.h"
#include "transport/ucx/drop_log.h"
#include "transport/ucx/ucx_memory_region.h"
#include "transport/ucx/ucx_operation.h"
#include "transport/ucx/ucx_worker.h"

#include <boost/intrusive/list.hpp>
#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

/// Gets over links that have no one-sided ones (TCP): the reader asks by message for one fragment at a time, the owner's
/// loop answers with its bytes. UCX has the same emulation, but in it the owner's process is aborted ("Fatal: unexpected
/// error", ucp_request_try_send) when a reader dies while its request is on the way (1.22, and later ones so far); here a
/// failed answer is just dropped, and the owner checks each request against the regions it has registered.
namespace sluice::transport {

/// Bytes of one answer: one fragment of TCP with our header.
inline constexpr std::size_t kServedFragmentBytes = 60 << 10;

/// The reader's side, of one endpoint.
class ServedGets {
public:
    /// `id` finds the endpoint again when an answer comes.
    ServedGets(OperationQueue& operations, UcxEndpoint& endpoint, std::uint64_t id)
        : operations_(operations), endpoint_(endpoint), id_(id) {}

    /// Takes over a get, whose fields are set, and ends it some time. `handle` is the endpoint's.
    void start(UcxOperation& get, ucp_ep_h handle);
    /// An answer has come. Ignores one that nobody waits for any more.
    void answered(std::uint64_t ticket, ucs_status_t status, std::span<const std::byte> bytes, ucp_ep_h handle);
    /// The message that asked with `ticket` could not be sent. Nothing if it is answered already.
    void request_failed(std::uint64_t ticket, ucs_status_t status);
    /// Ends all with `status`; nothing is written to their memory afterwards.
    void fail_all(ucs_status_t status);

private:
    /// Fragments asked for at once: enough to cover the round trip, and a bound on what the owner holds for us.
    static constexpr std::size_t kWindow = 8;

    struct Fragment {
        UcxOperation* get = nullptr;  // Null: free.
        std::size_t offset = 0;
        std::size_t size = 0;
        std::uint64_t generation = 0;
    };
    // A fragment's ticket tells an answer to it from a late answer to a former one.
    [[nodiscard]] static std::uint64_t ticket(std::size_t slot, std::uint64_t generation) {
        return generation * kWindow + slot;
    }
    [[nodiscard]] Fragment* find(std::uint64_t ticket);
    void release(Fragment& fragment);
    void ask(ucp_ep_h handle);
    void fail(UcxOperation& get, ucs_status_t status);

    OperationQueue& operations_;
    UcxEndpoint& endpoint_;
    const std::uint64_t id_;
    boost::intrusive::list<UcxOperation> gets_;
    std::array<Fragment, kWindow> fragments_;
};

/// The owner's side. It keeps nothing about readers but the answers that are still on their way.
class GetServer {
public:
    /// Of answers that are held up by slow readers `max_answers` have bytes; requests beyond that are refused.
    GetServer(const ReadableRegions& regions, int max_answers) : regions_(regions), max_answers_(max_answers) {}

    Status open(UcxWorker& worker);

private:
    struct Answer {
        std::array<std::byte, kServedFragmentBytes> bytes;
        std::array<std::byte, 24> header;
        GetServer* server = nullptr;
        Answer* next_free = nullptr;
    };
    /// Refusals that are held up by slow readers at most: UCX keeps a few hundred bytes for each.
    static constexpr int kMaxRefusals = 65536;

    static ucs_status_t on_request(void* argument, const void* header, std::size_t header_size, void* data,
                                   std::size_t size, const ucp_am_recv_param_t* param);
    static void on_sent(void* request, ucs_status_t status, void* user_data);
    static void on_refused(void* request, ucs_status_t status, void* user_data);
    void serve(std::span<const std::byte> request, ucp_ep_h reply_to);
    void refuse(std::uint64_t endpoint, std::uint64_t ticket, ucp_ep_h reply_to);
    void give_back(Answer& answer);

    const ReadableRegions& regions_;
    const int max_answers_;
    NodePool<Answer> answers_{64};
    int in_use_ = 0;
    int refusing_ = 0;
    DropLog malformed_;
    DropLog overflow_;
};

/// What an answer's header says; false when it is none.
struct ServedAnswer {
    std::uint64_t endpoint = 0;
    std::uint64_t ticket = 0;
    ucs_status_t status = UCS_OK;
};
bool decode_answer(std::span<const std::byte> header, ServedAnswer& out);

/// The active messages of this protocol.
inline constexpr unsigned kServedRequestId = 1;
inline constexpr unsigned kServedAnswerId = 2;

}  // namespace sluice::transport

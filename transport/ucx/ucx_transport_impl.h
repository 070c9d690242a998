#pragma once

#include "transport/ucx/drop_log.h"
#include "transport/ucx/served_gets.h"
#include "transport/ucx/ucx_context.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_memory_region.h"
#include "transport/ucx/ucx_operation.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/ucx_worker.h"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace sluice::transport {

/// The transport, for its endpoints and itself. Everybody else includes ucx_transport.h.
class UcxTransport final : public Transport, private EventLoop::Poller {
public:
    static Result<std::unique_ptr<Transport>> open(EventLoop& loop, const UcxOptions& options);
    ~UcxTransport() override;

    [[nodiscard]] std::vector<std::byte> address() const override;
    [[nodiscard]] std::size_t max_message_bytes() const override { return max_message_bytes_; }
    void set_message_handler(MessageHandler handler) override { handler_ = std::move(handler); }
    Result<std::unique_ptr<MemoryRegion>> register_memory(std::span<std::byte> memory, MemoryKind kind,
                                                          Access access) override;
    Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> address, int peer,
                                              PeerLostHandler on_lost) override;

    // For endpoints.

    /// The active message that carries ours.
    static constexpr unsigned kMessageId = 0;
    static constexpr std::size_t kProbeBytes = 64;

    [[nodiscard]] EventLoop& loop() { return loop_; }
    [[nodiscard]] ucp_worker_h worker() const { return worker_.handle(); }
    [[nodiscard]] OperationQueue& operations() { return operations_; }
    /// Where probes of all endpoints write what nobody reads.
    [[nodiscard]] const UcxMemoryRegion& probe_target() const;

    /// Gets of device memory that are in flight. While there are any the loop stays awake: their ends come within microseconds of each other,
    /// and to be woken for them UCX has to put a call of the host into the stream, which the next copy then waits for.
    void count_device_gets(int more) { device_gets_ += more; }

    /// To be called on from progress(), outside of UCX: tell_lost() and advance_close().
    void mark_lost(UcxEndpoint& endpoint) { lost_.push_back(&endpoint); }
    void mark_closing(UcxEndpoint& endpoint) { closing_.push_back(&endpoint); }
    /// Its number, by which answers to served gets find it.
    std::uint64_t add(UcxEndpoint& endpoint);
    void forget(UcxEndpoint& endpoint);

    /// EventLoop::Poller; also what waits for a close in a destructor.
    bool progress() override;

private:
    UcxTransport(EventLoop& loop, UcxContext context, UcxWorker worker, int max_answers);
    Status set_up(const UcxOptions& options);

    bool arm() override;
    [[nodiscard]] int event_fd() const override { return worker_.event_fd(); }

    static ucs_status_t on_message(void* argument, const void* header, std::size_t header_size, void* data,
                                   std::size_t size, const ucp_am_recv_param_t* param);
    static ucs_status_t on_answer(void* argument, const void* header, std::size_t header_size, void* data,
                                  std::size_t size, const ucp_am_recv_param_t* param);
    bool tell();

    EventLoop& loop_;
    // Destroyed from the bottom to the top: worker, memory, context.
    UcxContext context_;
    ReadableRegions readable_;
    GetServer server_;
    alignas(64) std::array<std::byte, kProbeBytes> probe_memory_{};
    std::unique_ptr<MemoryRegion> probe_source_;
    std::unique_ptr<MemoryRegion> probe_target_;
    UcxWorker worker_;
    std::size_t max_message_bytes_ = 0;
    MessageHandler handler_;
    DropLog announced_;
    DropLog no_answers_;
    OperationQueue operations_;
    std::uint64_t last_endpoint_ = 0;
    std::map<std::uint64_t, UcxEndpoint*> endpoints_;
    std::vector<UcxEndpoint*> lost_;
    std::vector<UcxEndpoint*> closing_;
    std::vector<std::unique_ptr<UcxEndpoint>> abandoned_;  // until they are closed
    int device_gets_ = 0;
    /// Weights are in GPU memory: then the loop stays awake for a moment after it was busy, since being woken takes as long as moving a chunk.
    bool lively_ = false;
    bool has_verbs_ = false;
    std::uint64_t arm_failures_ = 0;
    EventLoop::Clock::time_point last_busy_{};
    bool polled_ = false;
    bool in_progress_ = false;
};

}  // namespace sluice::transport

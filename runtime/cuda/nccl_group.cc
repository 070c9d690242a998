#include "runtime/cuda/nccl_group.h"

#include "runtime/cuda/cuda_status.h"
#include "runtime/cuda/device_memory.h"
#include "runtime/cuda/nccl_library.h"
#include "runtime/cuda/stream.h"
#include "runtime/services/buffer.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

namespace sluice {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(20);

class OpenNcclGroup final : public NcclGroup {
public:
    OpenNcclGroup(const NcclLibrary& nccl, CudaStream stream, int rank, int size, int ordinal)
        : nccl_(nccl), stream_(std::move(stream)), rank_(rank), size_(size), ordinal_(ordinal) {}

    // Local: what runs is ended, and nobody is waited for. Whatever this rank had to do is over.
    ~OpenNcclGroup() override {
        if (communicator_ != nullptr && select_device().ok()) {
            static_cast<void>(nccl_.abort(communicator_));
        }
    }
    OpenNcclGroup(const OpenNcclGroup&) = delete;
    OpenNcclGroup& operator=(const OpenNcclGroup&) = delete;

    Status open(std::span<const std::byte> id, Deadline deadline) {
        ncclUniqueId name{};
        if (id.size() != sizeof name) {
            return invalid_argument(fmt::format("{} bytes are no name of an NCCL group", id.size()));
        }
        std::memcpy(&name, id.data(), sizeof name);
        // Calls return at once and are asked about, so that every wait has an end.
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        const ncclResult_t begun = nccl_.init(&communicator_, size_, name, rank_, &config);
        SLUICE_RETURN_IF_ERROR(
            finish_call(begun, deadline).with_context("opening an NCCL group (every rank needs a GPU of its own)"));
        return connect(deadline);
    }

    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return size_; }

    Status exchange(std::span<const Transfer> sends, std::span<const Transfer> receives, Deadline deadline) override {
        return guarded([&]() -> Status {
            SLUICE_RETURN_IF_ERROR(launch(sends, receives, deadline));
            return wait_for_stream(deadline);
        });
    }

    Status broadcast(std::byte* data, std::int64_t bytes, int root, Deadline deadline) override {
        return guarded([&] {
            return finish_call(nccl_.broadcast(data, data, static_cast<std::size_t>(bytes), ncclUint8, root,
                                               communicator_, stream_.handle()),
                               deadline);
        });
    }

    Status all_gather(std::byte* data, std::int64_t bytes, Deadline deadline) override {
        return guarded([&] {
            return finish_call(nccl_.all_gather(data + rank_ * bytes, data, static_cast<std::size_t>(bytes), ncclUint8,
                                                communicator_, stream_.handle()),
                               deadline);
        });
    }

    [[nodiscard]] void* stream() const override { return stream_.handle(); }
    Status wait(Deadline deadline) override {
        return guarded([&] { return wait_for_stream(deadline); });
    }

    void abort() override { aborted_ = true; }
    [[nodiscard]] bool failed() const override { return aborted_ || broken_; }

private:
    [[nodiscard]] Status select_device() const {
        return from_cuda(cudaSetDevice(ordinal_), fmt::format("selecting CUDA device {}", ordinal_));
    }

    // A failure is for good: nobody knows what of it has come to the peers.
    template <class Work>
    Status guarded(Work&& work) {
        if (broken_) {
            return {StatusCode::kAborted, "the NCCL group was given up after a failure"};
        }
        Status status = select_device();
        if (status.ok()) {
            status = work();
        }
        if (!status.ok()) {
            give_up();
        }
        return status;
    }

    // Peers that wait for this rank end too, when their links or deadlines tell them.
    void give_up() {
        broken_ = true;
        static_cast<void>(nccl_.abort(std::exchange(communicator_, nullptr)));
    }

    [[nodiscard]] Status nccl_error(ncclResult_t result) const {
        const char* detail = communicator_ != nullptr ? nccl_.last_error(communicator_) : nullptr;
        std::string text = fmt::format("NCCL: {}", nccl_.error_string(result));
        if (detail != nullptr && *detail != '\0') {
            text += fmt::format(" ({})", std::string_view(detail).substr(0, std::string_view(detail).find('\n')));
        }
        return {result == ncclRemoteError ? StatusCode::kPeerLost : StatusCode::kInternal, std::move(text)};
    }

    // Ok as long as there is time, nobody has stopped the group, and NCCL has found nothing.
    [[nodiscard]] Status check(Deadline deadline) const {
        if (aborted_) {
            return {StatusCode::kAborted, "the exchange was stopped"};
        }
        if (deadline.passed()) {
            return deadline_exceeded("an NCCL exchange has not ended in time; a peer takes no part in it");
        }
        return ok_status();
    }

    // Until the call that returned `result` is really over.
    Status finish_call(ncclResult_t result, Deadline deadline) {
        while (result == ncclInProgress) {
            SLUICE_RETURN_IF_ERROR(check(deadline));
            std::this_thread::sleep_for(kPollInterval);
            if (const ncclResult_t asked = nccl_.async_error(communicator_, &result); asked != ncclSuccess) {
                return nccl_error(asked);
            }
        }
        return result == ncclSuccess ? ok_status() : nccl_error(result);
    }

    Status launch(std::span<const Transfer> sends, std::span<const Transfer> receives, Deadline deadline) {
        if (const ncclResult_t started = nccl_.group_start(); started != ncclSuccess) {
            return nccl_error(started);
        }
        // What cannot be queued fails the group as a whole, at its end.
        ncclResult_t queued = ncclSuccess;
        const auto keep = [&](ncclResult_t result) {
            queued = result == ncclSuccess || result == ncclInProgress ? queued : result;
        };
        for (const Transfer& one : sends) {
            keep(nccl_.send(one.data, static_cast<std::size_t>(one.bytes), ncclUint8, one.peer, communicator_,
                            stream_.handle()));
        }
        for (const Transfer& one : receives) {
            keep(nccl_.receive(one.data, static_cast<std::size_t>(one.bytes), ncclUint8, one.peer, communicator_,
                               stream_.handle()));
        }
        SLUICE_RETURN_IF_ERROR(finish_call(nccl_.group_end(), deadline));
        return queued == ncclSuccess ? ok_status() : nccl_error(queued);
    }

    Status wait_for_stream(Deadline deadline) {
        for (;;) {
            const cudaError_t state = cudaStreamQuery(stream_.handle());
            if (!not_ready(state)) {
                return from_cuda(state, "moving bytes by NCCL");
            }
            ncclResult_t error = ncclSuccess;
            if (const ncclResult_t asked = nccl_.async_error(communicator_, &error); asked != ncclSuccess) {
                return nccl_error(asked);
            }
            if (error != ncclSuccess && error != ncclInProgress) {
                return nccl_error(error);
            }
            SLUICE_RETURN_IF_ERROR(check(deadline));
            std::this_thread::sleep_for(kPollInterval);
        }
    }

    // NCCL makes a connection, and allocates for it, when two ranks first have to do with each other.
    Status connect(Deadline deadline) {
        constexpr std::int64_t kBytes = 16;
        SLUICE_ASSIGN_OR_RETURN(const Buffer memory, allocate_device_memory(2 * kBytes * size_));
        std::vector<Transfer> sends, receives;
        for (int peer = 0; peer < size_; ++peer) {
            if (peer != rank_) {
                sends.push_back({peer, memory.data() + 2 * kBytes * peer, kBytes});
                receives.push_back({peer, memory.data() + 2 * kBytes * peer + kBytes, kBytes});
            }
        }
        return exchange(sends, receives, deadline);
    }

    NcclLibrary nccl_;
    CudaStream stream_;
    int rank_;
    int size_;
    int ordinal_;
    ncclComm_t communicator_ = nullptr;
    std::atomic<bool> broken_ = false;
    std::atomic<bool> aborted_ = false;
};

}  // namespace

Result<std::vector<std::byte>> make_nccl_group_id() {
    SLUICE_ASSIGN_OR_RETURN(const NcclLibrary nccl, NcclLibrary::load());
    ncclUniqueId id{};
    if (const ncclResult_t result = nccl.get_unique_id(&id); result != ncclSuccess) {
        return Status(
            StatusCode::kInternal,
            fmt::format("NCCL: naming a group: {}; NCCL_SOCKET_IFNAME chooses its network", nccl.error_string(result)));
    }
    std::vector<std::byte> bytes(sizeof id);
    std::memcpy(bytes.data(), &id, sizeof id);
    return bytes;
}

Result<std::unique_ptr<NcclGroup>> open_nccl_group(std::span<const std::byte> id, int rank, int size, int ordinal,
                                                   Deadline deadline) {
    SLUICE_ASSIGN_OR_RETURN(const NcclLibrary nccl, NcclLibrary::load());
    SLUICE_RETURN_IF_ERROR(
        from_cuda(cudaSetDevice(ordinal), fmt::format("selecting CUDA device {} for NCCL", ordinal)));
    SLUICE_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::create());
    auto group = std::make_unique<OpenNcclGroup>(nccl, std::move(stream), rank, size, ordinal);
    SLUICE_RETURN_IF_ERROR(group->open(id, deadline));
    return std::unique_ptr<NcclGroup>(std::move(group));
}

}  // namespace sluice

#include "bench/raw_get.h"

#include "runtime/services/latch.h"
#include "transport/ucx/ucx_transport.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

namespace sluice::bench {
namespace {

class Once : public transport::Completion {
public:
    void complete(const Status&) override { done.count_down(); }
    Latch done{1};
};

}  // namespace

/// One pass over the range. Lives on the loop between start() and the latch.
class RawGet::Run {
public:
    Run(RawGet& raw, std::int64_t bytes, std::int64_t begin, std::int64_t piece)
        : raw_(raw), bytes_(bytes), begin_(begin) {
        piece_ = static_cast<std::int64_t>(raw.endpoint_->link().max_get_bytes);
        piece_ = piece > 0 ? std::min(piece, piece_) : piece_;
        const auto most = std::max<std::int64_t>(1, raw.window_ / piece_);
        for (std::int64_t i = 0; i < most; ++i) {
            gets_.push_back(std::make_unique<Get>(*this));
        }
    }

    void start() {
        for (auto& get : gets_) {
            next(*get);
        }
    }

    Latch done{1};
    Status status;

private:
    class Get : public transport::Completion {
    public:
        explicit Get(Run& run) : run_(run) {}
        void complete(const Status& status) override {
            if (!status.ok() && run_.status.ok()) {
                run_.status = status;
            }
            --run_.in_flight_;
            run_.next(*this);
        }

    private:
        Run& run_;
    };

    void next(Get& get) {
        if (posted_ == bytes_ || !status.ok()) {
            if (in_flight_ == 0 && !ended_) {
                ended_ = true;
                done.count_down();
            }
            return;
        }
        const std::int64_t size = std::min(piece_, bytes_ - posted_);
        const std::int64_t at = begin_ + std::exchange(posted_, posted_ + size);
        ++in_flight_;
        raw_.endpoint_->get(raw_.memory_.data() + at, static_cast<std::size_t>(size), *raw_.region_,
                            raw_.remote_address_ + static_cast<std::uint64_t>(at), *raw_.key_, get);
    }

    RawGet& raw_;
    std::int64_t bytes_;
    std::int64_t begin_;
    std::int64_t piece_ = 0;
    std::int64_t posted_ = 0;
    int in_flight_ = 0;
    bool ended_ = false;
    std::vector<std::unique_ptr<Get>> gets_;
};

RawGet::RawGet(const Settings& settings)
    : window_(settings.inflight_bytes), loop_(std::make_unique<EventLoop>("raw get")) {}

Result<std::unique_ptr<RawGet>> RawGet::create(const Settings& settings, Bootstrap& bootstrap,
                                               std::span<std::byte> memory, Deadline deadline, Device* device,
                                               int owner) {
    std::unique_ptr<RawGet> raw(new RawGet(settings));
    raw->memory_ = memory;
    const bool owns = bootstrap.rank() == owner;
    Status status;
    raw->loop_->run_and_wait([&] {
        status = [&]() -> Status {
            transport::UcxOptions options{settings.ucx, settings.show_ucx_log};
            const MemoryKind kind = device != nullptr ? MemoryKind::kCuda : MemoryKind::kHost;
            if (device != nullptr) {
                SLUICE_RETURN_IF_ERROR(device->use_on_this_thread());
                options.probe_memory = memory;
                options.probe_kind = kind;
            }
            SLUICE_ASSIGN_OR_RETURN(raw->transport_, transport::open_ucx_transport(*raw->loop_, options));
            SLUICE_ASSIGN_OR_RETURN(
                raw->region_, raw->transport_->register_memory(
                                  memory, kind, owns ? transport::Access::kRemoteRead : transport::Access::kLocal));
            return ok_status();
        }();
    });
    SLUICE_RETURN_IF_ERROR(status);
    std::vector<std::byte> address;
    std::vector<std::byte> key;
    std::vector<std::byte> where(sizeof(std::uint64_t));
    raw->loop_->run_and_wait([&] {
        address = raw->transport_->address();
        key = raw->region_->packed_key();
    });
    const auto at = reinterpret_cast<std::uint64_t>(memory.data());
    std::memcpy(where.data(), &at, sizeof at);
    SLUICE_ASSIGN_OR_RETURN(const auto addresses, bootstrap.all_gather(address, deadline));
    SLUICE_ASSIGN_OR_RETURN(const auto keys, bootstrap.all_gather(key, deadline));
    SLUICE_ASSIGN_OR_RETURN(const auto places, bootstrap.all_gather(where, deadline));
    if (owns) {
        return raw;
    }
    std::memcpy(&raw->remote_address_, places[static_cast<std::size_t>(owner)].data(), sizeof raw->remote_address_);
    raw->loop_->run_and_wait([&] {
        status = [&]() -> Status {
            SLUICE_ASSIGN_OR_RETURN(raw->endpoint_, raw->transport_->connect(addresses[static_cast<std::size_t>(owner)],
                                                                             owner, [](const Status&) {}));
            SLUICE_ASSIGN_OR_RETURN(raw->key_, raw->endpoint_->unpack_key(keys[static_cast<std::size_t>(owner)]));
            return ok_status();
        }();
    });
    SLUICE_RETURN_IF_ERROR(status);
    SLUICE_RETURN_IF_ERROR(raw->run(std::min<std::int64_t>(1, static_cast<std::int64_t>(memory.size()))).status());
    return raw;
}

RawGet::~RawGet() {
    Once closed;
    loop_->run_and_wait([&] {
        key_.reset();
        endpoint_ ? endpoint_->close(/*force=*/false, closed) : closed.complete(ok_status());
    });
    closed.done.wait();
    loop_->run_and_wait([&] {
        endpoint_.reset();
        region_.reset();
        transport_.reset();
    });
}

double RawGet::cpu_seconds() {
    timespec used{};
    loop_->run_and_wait([&] { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used); });
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

Result<double> RawGet::run(std::int64_t bytes, std::int64_t begin, std::int64_t piece) {
    Run run(*this, bytes, begin, piece);
    const auto started = EventLoop::Clock::now();
    loop_->run_and_wait([&] { run.start(); });
    run.done.wait();
    const double seconds = std::chrono::duration<double>(EventLoop::Clock::now() - started).count();
    loop_->run_and_wait([&] { link_ = endpoint_->link(); });
    SLUICE_RETURN_IF_ERROR(run.status);
    return seconds;
}

}  // namespace sluice::bench

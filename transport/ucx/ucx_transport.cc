#include "transport/ucx/ucx_transport.h"

#include "runtime/services/buffer.h"
#include "runtime/services/log.h"
#include "transport/ucx/locked_memory.h"
#include "transport/ucx/ucx_key_format.h"
#include "transport/ucx/ucx_library.h"
#include "transport/ucx/ucx_log.h"
#include "transport/ucx/ucx_status.h"
#include "transport/ucx/ucx_transport_impl.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <chrono>
#include <sstream>
#include <string_view>
#include <utility>

namespace sluice::transport {
namespace {

// A message must fit one fragment of every transport, since fragments of several messages may overtake each other.
// UCX's limit for headers is that size less its own header; this is what is left on a transport of 8 KiB fragments.
constexpr std::size_t kMaxMessageBytes = 8000;

// The loop has other things to do than one worker's work: it comes back when either bound is reached.
constexpr int kRoundsBeforeClock = 8;
constexpr std::chrono::microseconds kLongestTurn{500};
constexpr std::chrono::microseconds kAwakeAfterWork{300};

constexpr const char* kNetDevices = "NET_DEVICES";

// "rc_mlx5/mlx5_0:1" and the like.
bool is_verbs(const std::string& transport) {
    return std::ranges::any_of(std::array<std::string_view, 5>{"rc_", "dc_", "ud_", "srd", "gga_"},
                               [&](std::string_view prefix) { return transport.starts_with(prefix); });
}

// UCX only warns of a device that it does not have, and goes on with what is left.
Status check_net_devices(const std::vector<UcxSetting>& settings, const std::string& wanted) {
    std::vector<UcxSetting> all = settings;
    all.push_back({kNetDevices, "all"});
    SLUICE_ASSIGN_OR_RETURN(const UcxContext context, UcxContext::open(all));
    // Devices of the memory of this host are no network's.
    std::vector<std::string> devices;
    for (const std::string& transport : context.transports()) {
        const std::string device = transport.substr(transport.find('/') + 1);
        if (device != "memory" && std::ranges::find(devices, device) == devices.end()) {
            devices.push_back(device);
        }
    }
    std::istringstream names(wanted);
    for (std::string name; std::getline(names, name, ',');) {
        if (std::ranges::find(devices, name) == devices.end()) {
            return invalid_argument(
                fmt::format("UCX has no network device '{}' here; it has: {}", name, fmt::join(devices, " ")));
        }
    }
    return ok_status();
}

// Without memory for its receive buffers UCX starts all the same, and then hears nothing. Here is less than it takes for them.
Status check_locked_memory(const UcxContext& context) {
    if (locked_memory_hint().empty() || std::ranges::none_of(context.transports(), is_verbs)) {
        return ok_status();
    }
    constexpr std::int64_t kTried = std::int64_t{4} << 20;
    SLUICE_ASSIGN_OR_RETURN(const Buffer tried, Buffer::allocate(kTried, MemoryKind::kHost));
    ReadableRegions none;
    return UcxMemoryRegion::open(context, none, tried.bytes(), MemoryKind::kHost, Access::kLocal).status();
}

}  // namespace

Result<std::unique_ptr<Transport>> open_ucx_transport(EventLoop& loop, const UcxOptions& options) {
    return UcxTransport::open(loop, options);
}

Result<std::unique_ptr<Transport>> UcxTransport::open(EventLoop& loop, const UcxOptions& options) {
    assert(loop.on_loop_thread());
    SLUICE_RETURN_IF_ERROR(check_ucx(loaded_ucx()));
    if (!options.show_log) {
        route_ucx_log();
    }
    std::vector<UcxSetting> settings = options.settings;
    // See ServedGets: UCX's own emulation would abort owners.
    settings.push_back({"PROTO_EMULATION_ENABLE", "n"});
    if (!options.net_devices.empty()) {
        SLUICE_RETURN_IF_ERROR(check_net_devices(settings, options.net_devices));
        settings.push_back({kNetDevices, options.net_devices});
    }
    SLUICE_ASSIGN_OR_RETURN(UcxContext context, UcxContext::open(settings));
    SLUICE_RETURN_IF_ERROR(check_locked_memory(context));
    SLUICE_ASSIGN_OR_RETURN(UcxWorker worker, UcxWorker::open(context.handle()));
    std::unique_ptr<UcxTransport> transport(
        new UcxTransport(loop, std::move(context), std::move(worker), options.max_answers));
    SLUICE_RETURN_IF_ERROR(transport->set_up(options));
    return std::unique_ptr<Transport>(std::move(transport));
}

UcxTransport::UcxTransport(EventLoop& loop, UcxContext context, UcxWorker worker, int max_answers)
    : loop_(loop), context_(std::move(context)), server_(readable_, max_answers), worker_(std::move(worker)) {}

Status UcxTransport::set_up(const UcxOptions& options) {
    lively_ = options.probe_kind == MemoryKind::kCuda;
    has_verbs_ = std::ranges::any_of(context_.transports(), is_verbs);
    max_message_bytes_ = std::min(worker_.max_header_bytes(), kMaxMessageBytes);
    if (!options.probe_memory.empty() && options.probe_memory.size() < kProbeBytes) {
        return invalid_argument(fmt::format("UcxOptions::probe_memory has {} bytes; give it at least {}",
                                            options.probe_memory.size(), kProbeBytes));
    }
    const std::span<std::byte> probe =
        options.probe_memory.empty() ? std::span<std::byte>(probe_memory_) : options.probe_memory.first(kProbeBytes);
    SLUICE_ASSIGN_OR_RETURN(probe_source_, register_memory(probe, options.probe_kind, Access::kRemoteRead));
    SLUICE_ASSIGN_OR_RETURN(probe_target_, register_memory(probe, options.probe_kind, Access::kLocal));
    SLUICE_RETURN_IF_ERROR(worker_.set_message_handler(kMessageId, on_message, this));
    SLUICE_RETURN_IF_ERROR(worker_.set_message_handler(kServedAnswerId, on_answer, this));
    SLUICE_RETURN_IF_ERROR(server_.open(worker_));
    loop_.add_poller(*this);
    polled_ = true;
    return ok_status();
}

UcxTransport::~UcxTransport() {
    assert(loop_.on_loop_thread() && !in_progress_);
    std::exchange(abandoned_, {}).clear();  // progress(), with which each waits for its end, looks at the list
    assert(endpoints_.empty() && "endpoints die before their transport");
    if (polled_) {
        loop_.remove_poller(*this);
    }
}

std::vector<std::byte> UcxTransport::address() const {
    UcxAddressFields fields;
    const std::vector<std::byte> key = probe_source_->packed_key();
    fields.probe_key = key;
    fields.ucx = worker_.address();
    return encode_address(fields);
}

Result<std::unique_ptr<MemoryRegion>> UcxTransport::register_memory(std::span<std::byte> memory, MemoryKind kind,
                                                                    Access access) {
    assert(loop_.on_loop_thread());
    return UcxMemoryRegion::open(context_, readable_, memory, kind, access);
}

Result<std::unique_ptr<Endpoint>> UcxTransport::connect(std::span<const std::byte> address, int peer,
                                                        PeerLostHandler on_lost) {
    assert(loop_.on_loop_thread());
    SLUICE_ASSIGN_OR_RETURN(const UcxAddressFields fields, decode_address(address));
    auto endpoint = std::make_unique<UcxEndpoint>(*this, peer, std::move(on_lost));
    if (Status opened = endpoint->open(fields); !opened.ok()) {
        // To wait for its end takes progress, within which we may have been called.
        endpoint->abandon();
        abandoned_.push_back(std::move(endpoint));
        return opened;
    }
    return std::unique_ptr<Endpoint>(std::move(endpoint));
}

const UcxMemoryRegion& UcxTransport::probe_target() const {
    return static_cast<const UcxMemoryRegion&>(*probe_target_);
}

std::uint64_t UcxTransport::add(UcxEndpoint& endpoint) {
    endpoints_[++last_endpoint_] = &endpoint;
    return last_endpoint_;
}

void UcxTransport::forget(UcxEndpoint& endpoint) {
    endpoints_.erase(endpoint.id());
    std::erase(lost_, &endpoint);
    std::erase(closing_, &endpoint);
}

bool UcxTransport::progress() {
    assert(loop_.on_loop_thread() && !in_progress_);
    in_progress_ = true;
    const auto start = EventLoop::Clock::now();
    bool busy = false;
    do {
        for (int round = 0; round < kRoundsBeforeClock; ++round) {
            busy = ucp_worker_progress(worker_.handle()) != 0;
            if (!busy) {
                break;
            }
        }
    } while (busy && EventLoop::Clock::now() - start < kLongestTurn);
    in_progress_ = false;
    // Whoever is told may have started something, which may need progress that no event announces.
    busy = tell() || busy;
    if (busy && lively_) {
        last_busy_ = EventLoop::Clock::now();
    }
    return busy;
}

// One of each in turn, from lists that every call may change.
bool UcxTransport::tell() {
    bool told = false;
    while (UcxOperation* operation = operations_.pop()) {
        operation->endpoint->operation_ended(*operation);
        told = true;
    }
    while (!lost_.empty()) {
        UcxEndpoint* endpoint = lost_.back();
        lost_.pop_back();
        endpoint->tell_lost();
        told = true;
    }
    while (!closing_.empty()) {
        UcxEndpoint* endpoint = closing_.back();
        closing_.pop_back();
        endpoint->advance_close();
        told = true;
    }
    std::erase_if(abandoned_, [](const auto& endpoint) { return endpoint->closed(); });
    return told;
}

bool UcxTransport::arm() {
    const auto anything_to_tell = [this] { return !operations_.empty() || !lost_.empty() || !closing_.empty(); };
    if (anything_to_tell() || device_gets_ > 0 || (lively_ && EventLoop::Clock::now() - last_busy_ < kAwakeAfterWork)) {
        return false;
    }
    const ucs_status_t status = ucp_worker_arm(worker_.handle());
    if (status != UCS_OK && status != UCS_ERR_BUSY && std::has_single_bit(++arm_failures_)) {
        // Sleeping would leave everything to the safety tick; staying awake is the lesser evil.
        log::error("UCX cannot wait for events: {} ({} times so far)", ucs_status_string(status), arm_failures_);
    }
    if (status != UCS_OK || !has_verbs_) {
        return status == UCS_OK;
    }
    // A completion queue tells of what comes after it was armed; UCX does not look whether something came just before. Some devices
    // make up for that by themselves (mlx5), others do not, as verbs allow. What message handlers started may have ended at once.
    in_progress_ = true;
    const bool busy = ucp_worker_progress(worker_.handle()) != 0;
    in_progress_ = false;
    return !busy && !anything_to_tell();
}

ucs_status_t UcxTransport::on_message(void* argument, const void* header, std::size_t header_size, void* data,
                                      std::size_t size, const ucp_am_recv_param_t* param) {
    auto* self = static_cast<UcxTransport*>(argument);
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        // Ours are eager; then `data` are no bytes but a descriptor. Not fetching it drops the message.
        self->announced_.note(size, "were announced instead of sent");
        return UCS_OK;
    }
    if (self->handler_) {
        self->handler_({static_cast<const std::byte*>(header), header_size},
                       {static_cast<const std::byte*>(data), size});
    }
    return UCS_OK;
}

ucs_status_t UcxTransport::on_answer(void* argument, const void* header, std::size_t header_size, void* data,
                                     std::size_t size, const ucp_am_recv_param_t* param) {
    auto* self = static_cast<UcxTransport*>(argument);
    ServedAnswer answer;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ||
        !decode_answer({static_cast<const std::byte*>(header), header_size}, answer)) {
        self->no_answers_.note(size, "are no answer to a get");
        return UCS_OK;
    }
    const auto endpoint = self->endpoints_.find(answer.endpoint);
    if (endpoint != self->endpoints_.end()) {
        endpoint->second->answered(answer, {static_cast<const std::byte*>(data), size});
    }
    return UCS_OK;
}

}  // namespace sluice::transport

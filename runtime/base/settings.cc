#include "runtime/base/settings.h"

#include "runtime/base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

namespace sluice {
namespace {

using std::chrono::milliseconds;

// Why each one differs from UCX's own default:
//   RNDV_THRESH       rendezvous would forbid CMA in peer error mode, and bulk data never goes by active message
//   MAX_RMA_RAILS     a get uses one NIC otherwise
//   MAX_HCA_PER_GPU   the NICs near a GPU rather than all of them
//   CUDA_IPC_...      without it gets between GPUs of a node fall back to emulation on some platforms
//   CMA_TX_QUOTA      each turn of progress asks all transports, which costs as much as a small copy: some copies to a turn
//   RC_TIMEOUT, RC_RETRY_COUNT
//                     a node that is gone is given up after 4 s by who reads from it, instead of 8 s (or never: some devices take 7 retries
//                     for endless). Heartbeats find it sooner
//   UD_TIMEOUT        the same for who connects to it: 10 s instead of 30 s
//   KEEPALIVE_INTERVAL
//                     the exchange's heartbeats do what it is for, in a tenth of the time. UCX's goes by datagrams, on a lane to each peer of
//                     their own; and where they cannot be sent, since a port's interface was taken down, UCX aborts the process
//   IB_REG_MT_THRESH  from 4 GiB on mlx5 devices register memory by threads of UCX's, which transport/ucx/read_only_registration.h does not
//                     see, and under a key with all rights
//   MEMTYPE_CACHE     UCX's cache knows what was allocated while its hooks were in place; all other memory it takes for the host's
// MM_ERROR_HANDLING stays off: with it the death of an idle peer is noticed after 20 s instead of milliseconds.
struct UcxDefault {
    const char* key;
    const char* value;
    std::array<const char*, 3> narrower = {};  // For single transports: ours would win over them.
};
constexpr std::array<UcxDefault, 11> kUcxDefaults = {{
    {"RNDV_THRESH", "inf"},
    {"MAX_RMA_RAILS", "2"},
    {"MAX_HCA_PER_GPU", "auto"},
    {"CUDA_IPC_ENABLE_GET_ZCOPY", "y"},
    {"CMA_TX_QUOTA", "4"},
    {"RC_TIMEOUT", "500ms", {"RC_VERBS_TIMEOUT", "RC_MLX5_TIMEOUT", "DC_MLX5_TIMEOUT"}},
    {"RC_RETRY_COUNT", "6", {"RC_VERBS_RETRY_COUNT", "RC_MLX5_RETRY_COUNT", "DC_MLX5_RETRY_COUNT"}},
    {"UD_TIMEOUT", "10s", {"UD_VERBS_TIMEOUT", "UD_MLX5_TIMEOUT"}},
    {"KEEPALIVE_INTERVAL", "inf"},
    {"IB_REG_MT_THRESH", "inf"},
    {"MEMTYPE_CACHE", "n"},
}};
constexpr std::int64_t kMinChunkBytes = 4096;

Status read(std::string_view text, LogLevel& out) {
    const auto level = parse_log_level(text);
    if (!level) {
        return invalid_argument("'" + std::string(text) + "' is no log level; use debug, info, warning, error or off");
    }
    out = *level;
    return ok_status();
}

Status read(std::string_view text, milliseconds& out) {
    SLUICE_ASSIGN_OR_RETURN(out, parse_duration(text));
    return ok_status();
}

Status read(std::string_view text, std::int64_t& out) {
    SLUICE_ASSIGN_OR_RETURN(out, parse_bytes(text));
    return ok_status();
}

Status read(std::string_view text, int& out) {
    const char* end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, out);
    if (error != std::errc() || last != end) {
        return invalid_argument("'" + std::string(text) + "' is no number; write for example 8");
    }
    return ok_status();
}

Status read(std::string_view text, bool& out) {
    if (text != "on" && text != "off") {
        return invalid_argument("'" + std::string(text) + "' is neither on nor off");
    }
    out = text == "on";
    return ok_status();
}

std::string write(bool value) { return value ? "on" : "off"; }
std::string write(LogLevel value) { return std::string(to_string(value)); }
std::string write(milliseconds value) { return format_duration(value); }
std::string write(std::int64_t value) { return format_bytes(value); }
std::string write(int value) { return std::to_string(value); }

// Every variable with its field; `Self` is Settings, const or not.
template <class Self, class Visit>
void for_each_variable(Self& self, Visit visit) {
    visit("SLUICE_LOG_LEVEL", self.log_level);
    visit("SLUICE_HEARTBEAT_INTERVAL", self.heartbeat_interval);
    visit("SLUICE_HEARTBEAT_DEAD_AFTER", self.heartbeat_dead_after);
    visit("SLUICE_CONNECT_TIMEOUT", self.connect_timeout);
    visit("SLUICE_SYNC_TIMEOUT", self.sync_timeout);
    visit("SLUICE_CHUNK_BYTES", self.chunk_bytes);
    visit("SLUICE_DIRECT_RUN_BYTES", self.direct_run_bytes);
    visit("SLUICE_STAGING_BYTES", self.staging_bytes);
    visit("SLUICE_SLOTS", self.slots);
    visit("SLUICE_INFLIGHT_BYTES", self.inflight_bytes);
    visit("SLUICE_CREDIT", self.credit);
    visit("SLUICE_COPY_THREADS", self.copy_threads);
    visit("SLUICE_COPY_AT_ONCE_BYTES", self.copy_at_once_bytes);
    visit("SLUICE_MAPPED", self.mapped);
    visit("SLUICE_STAGED", self.staged);
}

template <class T>
Status at_least(const char* variable, T value, T least, const std::string& why = "") {
    if (value >= least) {
        return ok_status();
    }
    return invalid_argument(std::string(variable) + " is " + write(value) + "; it must be at least " + write(least) +
                            why);
}

}  // namespace

Result<Settings> Settings::from_environment() {
    return from([](const std::string& name) -> std::optional<std::string> {
        // NOLINTNEXTLINE(concurrency-mt-unsafe): in main, before other threads start.
        const char* value = std::getenv(name.c_str());
        return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
    });
}

Result<Settings> Settings::from(const Lookup& lookup) {
    Settings out;
    Status status;
    for_each_variable(out, [&](const char* variable, auto& field) {
        if (!status.ok()) {
            return;
        }
        if (const auto text = lookup(variable)) {
            status = read(*text, field);
            out.given.emplace_back(variable);
            if (!status.ok()) {
                status = status.with_context(variable);
            }
        }
    });
    SLUICE_RETURN_IF_ERROR(status);
    out.set_chunk_bytes(out.chunk_bytes);
    SLUICE_RETURN_IF_ERROR(out.check());
    const auto given = [&](const char* key) { return key != nullptr && lookup(std::string("UCX_") + key); };
    for (const UcxDefault& entry : kUcxDefaults) {
        if (!given(entry.key) && std::ranges::none_of(entry.narrower, given)) {
            out.ucx.push_back({entry.key, entry.value});
        }
    }
    out.ucx_transports = lookup("UCX_TLS").value_or("");
    out.show_ucx_log = lookup("UCX_LOG_LEVEL").has_value();
    return out;
}

bool Settings::was_given(std::string_view variable) const { return std::ranges::find(given, variable) != given.end(); }

void Settings::adapt_to_device() {
    const auto set = [this](const char* variable, auto& field, auto value) {
        if (!was_given(variable)) {
            field = value;
        }
    };
    set("SLUICE_STAGING_BYTES", staging_bytes, std::int64_t{1} << 30);
    set("SLUICE_INFLIGHT_BYTES", inflight_bytes, std::int64_t{512} << 20);
    set("SLUICE_SLOTS", slots, 16);
    set("SLUICE_COPY_THREADS", copy_threads, 16);  // they wait for kernels: as many are queued on the device
    // What was given may be less than a chunk of the default size.
    set("SLUICE_CHUNK_BYTES", chunk_bytes, std::min({std::int64_t{256} << 20, staging_bytes, inflight_bytes}));
    set_chunk_bytes(chunk_bytes);
}

void Settings::set_chunk_bytes(std::int64_t bytes) {
    chunk_bytes = bytes;
    if (!was_given("SLUICE_STAGING_BYTES")) {
        staging_bytes = std::max(staging_bytes, bytes);
    }
    if (!was_given("SLUICE_INFLIGHT_BYTES")) {
        inflight_bytes = std::max(inflight_bytes, bytes);
    }
}

Status Settings::check() const {
    const milliseconds one{1};
    SLUICE_RETURN_IF_ERROR(at_least("SLUICE_HEARTBEAT_INTERVAL", heartbeat_interval, one));
    SLUICE_RETURN_IF_ERROR(at_least("SLUICE_HEARTBEAT_DEAD_AFTER", heartbeat_dead_after, 2 * heartbeat_interval,
                                    " (two of SLUICE_HEARTBEAT_INTERVAL)"));
    SLUICE_RETURN_IF_ERROR(at_least("SLUICE_CONNECT_TIMEOUT", connect_timeout, one));
    SLUICE_RETURN_IF_ERROR(at_least("SLUICE_SYNC_TIMEOUT", sync_timeout, one));
    SLUICE_RETURN_IF_ERROR(at_least("SLUICE_CHUNK_BYTES", chunk_bytes, kMinChunkBytes));
    SLUICE_RETURN_IF_ERROR(at_least("SLUICE_DIRECT_RUN_BYTES", direct_run_bytes, std::int64_t{0}));
    SLUICE_RETURN_IF_ERROR(at_least("SLUICE_STAGING_BYTES", staging_bytes, chunk_bytes, " (SLUICE_CHUNK_BYTES)"));
    SLUICE_RETURN_IF_ERROR(at_least("SLUICE_SLOTS", slots, 1));
    SLUICE_RETURN_IF_ERROR(at_least("SLUICE_INFLIGHT_BYTES", inflight_bytes, chunk_bytes, " (SLUICE_CHUNK_BYTES)"));
    SLUICE_RETURN_IF_ERROR(at_least("SLUICE_COPY_THREADS", copy_threads, 1));
    SLUICE_RETURN_IF_ERROR(at_least("SLUICE_COPY_AT_ONCE_BYTES", copy_at_once_bytes, std::int64_t{0}));
    return at_least("SLUICE_CREDIT", credit, 1);
}

std::vector<Settings::Description> Settings::describe() const {
    std::vector<Description> out;
    for_each_variable(*this, [&](const char* variable, const auto& field) { out.push_back({variable, write(field)}); });
    return out;
}

}  // namespace sluice

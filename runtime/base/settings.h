#pragma once

#include "runtime/base/log_level.h"
#include "runtime/base/status.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// A UCX configuration entry that we set: `key` without its UCX_ prefix.
struct UcxSetting {
    std::string key;
    std::string value;
    friend bool operator==(const UcxSetting&, const UcxSetting&) = default;
};

/// Everything that can be set from outside without being part of a plan. Read once, in main, and passed on; nothing
/// else in the project looks at the environment. Command-line options of the same name win over the variable.
struct Settings {
    /// SLUICE_LOG_LEVEL: lines below it are not shown. debug, info, warning, error or off.
    LogLevel log_level = LogLevel::kInfo;

    /// SLUICE_HEARTBEAT_INTERVAL: how often a rank tells its peers that it is alive.
    std::chrono::milliseconds heartbeat_interval{250};
    /// SLUICE_HEARTBEAT_DEAD_AFTER: a peer that has been silent for this long is dead. At least two intervals.
    std::chrono::milliseconds heartbeat_dead_after{1500};
    /// SLUICE_CONNECT_TIMEOUT: limit for all of set-up's waits for peers (exchange of addresses, ready barrier).
    std::chrono::milliseconds connect_timeout{30'000};
    /// SLUICE_SYNC_TIMEOUT: limit for one sync, from the call to the verdict.
    std::chrono::milliseconds sync_timeout{300'000};

    /// SLUICE_CHUNK_BYTES: the most bytes of one request. At least 4 KiB.
    std::int64_t chunk_bytes = std::int64_t{4} << 20;
    /// SLUICE_DIRECT_RUN_BYTES: runs of a trainer's memory that are shorter are packed by it instead of being read one by one.
    std::int64_t direct_run_bytes = std::int64_t{64} << 10;
    /// SLUICE_STAGING_BYTES: a worker's staging memory. At least one chunk.
    std::int64_t staging_bytes = std::int64_t{64} << 20;
    /// SLUICE_SLOTS: the most memory for packed chunks of a trainer rank, in chunks of SLUICE_CHUNK_BYTES; smaller and fewer chunks take
    /// less. At least 1.
    int slots = 8;
    /// SLUICE_INFLIGHT_BYTES: the most bytes a worker has asked for and not received. At least one chunk.
    std::int64_t inflight_bytes = std::int64_t{32} << 20;
    /// SLUICE_CREDIT: groups a trainer may have published and unreleased; it holds at most one more. At least 1.
    int credit = 1;
    /// SLUICE_COPY_THREADS: threads that pack, scatter, copy and hash. At least 1.
    int copy_threads = 2;
    /// SLUICE_COPY_AT_ONCE_BYTES: what is no larger is packed, scattered, copied and hashed by the transport thread itself. 0: nothing.
    std::int64_t copy_at_once_bytes = std::int64_t{256} << 10;
    /// SLUICE_MAPPED: whether workers copy from trainers of the same host through shared memory. on or off.
    bool mapped = true;
    /// SLUICE_STAGED: whether weights in GPU memory go through pinned host memory, for networks that cannot reach GPUs. on or off.
    bool staged = false;

    /// Variables that were given, by name.
    std::vector<std::string> given;
    /// Sizes for GPU memory in place of the defaults above, which are for the caches of processors: a GPU needs larger pieces to be busy.
    /// What was given stays, and chunks are no larger than given staging and what may be in flight.
    void adapt_to_device();
    /// Sets chunk_bytes; staging and what is in flight hold at least one chunk where they were not given.
    void set_chunk_bytes(std::int64_t bytes);

    /// Our UCX defaults without those whose variable (UCX_<key>) the user has set: the user's environment wins.
    std::vector<UcxSetting> ucx;
    /// The user's UCX_TLS: what UCX may use. Empty: not set.
    std::string ucx_transports;
    /// The user has set UCX_LOG_LEVEL, so UCX's own lines are to be shown as UCX writes them.
    bool show_ucx_log = false;

    /// Finds the value of an environment variable, or nothing.
    using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

    /// Reads the variables above. A value that cannot be used is refused with variable, value and remedy.
    static Result<Settings> from_environment();
    /// The same from any source; this is from_environment without the environment.
    static Result<Settings> from(const Lookup& lookup);

    /// The rules between fields; to be asked again after command-line options have changed some. `ok` or what is wrong.
    [[nodiscard]] Status check() const;

    struct Description {
        std::string_view variable;
        std::string value;
    };
    /// Each variable with the value it has here, in the form that it can be set to. UCX entries are not among them.
    [[nodiscard]] std::vector<Description> describe() const;

private:
    [[nodiscard]] bool was_given(std::string_view variable) const;
};

}  // namespace sluice

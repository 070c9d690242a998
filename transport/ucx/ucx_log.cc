#include "transport/ucx/ucx_log.h"

#include "runtime/services/log.h"

#include <ucs/config/types.h>
#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace sluice::transport {
namespace {

thread_local std::string last_error;

ucs_log_func_rc_t to_our_log(const char*, unsigned, const char*, ucs_log_level_t level,
                             const ucs_log_component_config_t*, const char* format, va_list arguments) {
    const bool is_error = level <= UCS_LOG_LEVEL_ERROR;
    if (is_error || log::enabled(LogLevel::kDebug)) {
        char line[512];
        std::vsnprintf(line, sizeof(line), format, arguments);
        if (is_error) {
            last_error = line;
        }
        log::debug("ucx: {}", line);
    }
    // A fatal error ends the process right after this: UCX must be heard.
    return level == UCS_LOG_LEVEL_FATAL ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void route_ucx_log() {
    static std::once_flag once;
    std::call_once(once, [] {
        // UCX may log while it is unloaded, after our log is gone. Asking our log brings it to life first, so that it dies
        // after the handler was taken back.
        (void)log::enabled(LogLevel::kDebug);
        ucs_log_push_handler(to_our_log);
        std::atexit([] { ucs_log_pop_handler(); });
    });
}

std::string take_ucx_error() {
    const std::string error = std::exchange(last_error, {});
    return error.empty() ? error : " (" + error + ")";
}

}  // namespace sluice::transport

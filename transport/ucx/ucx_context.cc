#include "transport/ucx/ucx_context.h"

#include "runtime/services/log.h"
#include "transport/ucx/locked_memory.h"
#include "transport/ucx/ucx_log.h"
#include "transport/ucx/ucx_status.h"

#include <fmt/format.h>
#include <ucs/config/global_opts.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace sluice::transport {
namespace {

constexpr const char* kMemoryTypeCache = "MEMTYPE_CACHE";

struct ReleaseConfig {
    void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};

void set_features(ucp_params_t& params, std::uint64_t features) {
    params.field_mask |= UCP_PARAM_FIELD_FEATURES;
    params.features = features;
}

void set_name(ucp_params_t& params, const char* name) {
    params.field_mask |= UCP_PARAM_FIELD_NAME;
    params.name = name;
}

}  // namespace

Result<UcxContext> UcxContext::open(std::span<const UcxSetting> settings) {
    take_ucx_error();
    ucp_config_t* raw_config = nullptr;
    if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &raw_config); status != UCS_OK) {
        return from_ucs(status, "reading UCX's configuration (UCX_* variables)" + take_ucx_error());
    }
    const std::unique_ptr<ucp_config_t, ReleaseConfig> config(raw_config);
    for (const UcxSetting& setting : settings) {
        if (setting.key == kMemoryTypeCache) {
            // Of the whole library, not of a context: it is taken when the first memory is looked at.
            if (const ucs_status_t status = ucs_global_opts_set_value(kMemoryTypeCache, setting.value.c_str());
                status != UCS_OK) {
                log::warning(
                    "UCX does not take {}={} ({}); set UCX_{}={} in the environment, or GPU memory may be taken for "
                    "host memory",
                    setting.key, setting.value, ucs_status_string(status), setting.key, setting.value);
            }
            continue;
        }
        const ucs_status_t status = ucp_config_modify(config.get(), setting.key.c_str(), setting.value.c_str());
        if (status != UCS_OK) {
            // A default of ours that this UCX does not know; what it is for is checked on the links themselves.
            log::debug("UCX does not take {}={}: {}", setting.key, setting.value, ucs_status_string(status));
        }
    }
    ucp_params_t params{};
    set_features(params, UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP);
    set_name(params, "sluice");
    ucp_context_h handle = nullptr;
    if (const ucs_status_t status = ucp_init(&params, config.get(), &handle); status != UCS_OK) {
        return from_ucs(
            status, "starting UCX" + take_ucx_error() + "; look at UCX_TLS and UCX_NET_DEVICES" + locked_memory_hint());
    }
    return UcxContext(handle);
}

// UCX lists them in what it prints for people only: "#  resource 3 :  md 1  dev 2  flags -- tcp/eth0".
std::vector<std::string> UcxContext::transports() const {
    char* text = nullptr;
    std::size_t size = 0;
    std::FILE* stream = ::open_memstream(&text, &size);
    if (stream == nullptr) {
        return {};
    }
    ucp_context_print_info(handle(), stream);
    std::fclose(stream);
    std::istringstream lines(std::string(text, size));
    std::free(text);

    std::vector<std::string> out;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        bool is_resource = false;
        for (std::string word; words >> word;) {
            is_resource = is_resource || word == "resource";
            const std::size_t slash = word.find('/');
            if (is_resource && slash != std::string::npos && slash > 0 && slash + 1 < word.size() &&
                std::ranges::find(out, word) == out.end()) {
                out.push_back(word);
            }
        }
    }
    return out;
}

std::uint64_t UcxContext::memory_types() const {
    ucp_context_attr_t attributes{};
    attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
    return ucp_context_query(handle(), &attributes) == UCS_OK ? attributes.memory_types : 0;
}

}  // namespace sluice::transport

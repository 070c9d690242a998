#include "transport/transport_info.h"

#include "transport/ucx/ucx_context.h"
#include "transport/ucx/ucx_log.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace sluice::transport {
namespace {

// UCX lists a context's transports in what it prints for people only: "#  resource 3 :  md 1  dev 2  flags -- tcp/eth0".
std::vector<std::string> transports_of(ucp_context_h context) {
    char* text = nullptr;
    std::size_t size = 0;
    std::FILE* stream = ::open_memstream(&text, &size);
    if (stream == nullptr) {
        return {};
    }
    ucp_context_print_info(context, stream);
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

}  // namespace

Result<TransportInfo> inspect_transports(const UcxOptions& options) {
    TransportInfo info;
    info.library = loaded_ucx();
    SLUICE_RETURN_IF_ERROR(check_ucx(info.library));
    if (!options.show_log) {
        route_ucx_log();
    }
    SLUICE_ASSIGN_OR_RETURN(const UcxContext context, UcxContext::open(options.settings));
    info.transports = transports_of(context.handle());
    const std::uint64_t types = context.memory_types();
    if ((types & UCS_BIT(UCS_MEMORY_TYPE_HOST)) != 0) {
        info.memory_kinds.emplace_back("host");
    }
    if ((types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0) {
        info.memory_kinds.emplace_back("cuda");
    }
    return info;
}

}  // namespace sluice::transport

#include "transport/transport_info.h"

#include "transport/ucx/ucx_context.h"
#include "transport/ucx/ucx_log.h"

namespace sluice::transport {
Result<TransportInfo> inspect_transports(const UcxOptions& options) {
    TransportInfo info;
    info.library = loaded_ucx();
    SLUICE_RETURN_IF_ERROR(check_ucx(info.library));
    if (!options.show_log) {
        route_ucx_log();
    }
    SLUICE_ASSIGN_OR_RETURN(const UcxContext context, UcxContext::open(options.settings));
    info.transports = context.transports();
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

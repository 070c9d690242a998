#include "cli/nccl_ranks.h"

#include "runtime/exchange/agreement.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace sluice::cli {

Result<std::unique_ptr<NcclGroup>> open_nccl_ranks(Bootstrap& bootstrap, std::optional<int> place, int size,
                                                   int ordinal, Deadline deadline) {
    // Whoever has no NCCL says so before the others wait for it.
    const Result<std::vector<std::byte>> id =
        place ? make_nccl_group_id() : Result<std::vector<std::byte>>(std::vector<std::byte>());
    SLUICE_RETURN_IF_ERROR(agree_on_status(bootstrap, id.status(), deadline));
    SLUICE_ASSIGN_OR_RETURN(const auto ids,
                            bootstrap.all_gather(place == 0 ? *id : std::vector<std::byte>(), deadline));
    std::unique_ptr<NcclGroup> group;
    Status opened;
    if (place) {
        const auto name = std::find_if(ids.begin(), ids.end(), [](const auto& one) { return !one.empty(); });
        auto made = open_nccl_group(*name, *place, size, ordinal, deadline);
        opened = made.status();
        if (made.ok()) {
            group = std::move(*made);
        }
    }
    SLUICE_RETURN_IF_ERROR(agree_on_status(bootstrap, opened, deadline));
    return group;
}

}  // namespace sluice::cli

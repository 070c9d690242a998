#include "runtime/exchange/agreement.h"

#include "runtime/exchange/setup_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace sluice {

Status agree_on_status(Bootstrap& bootstrap, const Status& mine, Deadline deadline) {
    SLUICE_ASSIGN_OR_RETURN(const auto blobs, bootstrap.all_gather(encode_status(mine), deadline));
    std::vector<Status> all;
    for (const auto& blob : blobs) {
        all.push_back(decode_status(blob));
    }
    const auto failed = std::find_if(all.begin(), all.end(), [](const Status& status) { return !status.ok(); });
    if (failed == all.end()) {
        return ok_status();
    }
    const bool everybody = std::all_of(all.begin(), all.end(),
                                       [&](const Status& status) { return status.message() == failed->message(); });
    return everybody ? *failed : failed->with_context(fmt::format("rank {}", failed - all.begin()));
}

}  // namespace sluice

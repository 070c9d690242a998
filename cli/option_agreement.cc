#include "cli/option_agreement.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {
namespace {

struct SharedOption {
    const char* name = "";
    std::string text;               // this rank's; empty: not given
    std::string* target = nullptr;  // becomes what one of the programs was given; null: must be equal
};

}  // namespace

Status agree_on_options(Bootstrap& bootstrap, SyncOptions& options, Deadline deadline) {
    using Texts = std::vector<std::string>;
    const std::vector<SharedOption> shared = {{"--versions", std::to_string(options.versions)},
                                              {"--verify", verify_name(options.verify)},
                                              {"--gather", options.gather_by_nccl ? "nccl" : "pull"},
                                              {"--json", options.json_target, &options.json_target},
                                              {"--trace", options.trace_target, &options.trace_target}};
    Texts mine;
    std::ranges::transform(shared, std::back_inserter(mine), &SharedOption::text);
    const std::vector<std::uint8_t> packed = nlohmann::json::to_cbor(nlohmann::json(mine));
    SLUICE_ASSIGN_OR_RETURN(const auto blobs, bootstrap.all_gather(std::as_bytes(std::span(packed)), deadline));
    std::vector<Texts> all;
    for (const Bootstrap::Blob& blob : blobs) {
        const auto bytes = std::span(reinterpret_cast<const std::uint8_t*>(blob.data()), blob.size());
        const auto json = nlohmann::json::from_cbor(bytes.begin(), bytes.end(), true, /*allow_exceptions=*/false);
        const bool texts = json.is_array() && json.size() == shared.size() &&
                           std::ranges::all_of(json, [](const auto& one) { return one.is_string(); });
        if (!texts) {
            return internal_error(
                fmt::format("rank {} sent no options; do all ranks run the same program?", all.size()));
        }
        all.push_back(json.get<Texts>());
    }
    for (std::size_t i = 0; i < shared.size(); ++i) {
        const auto given = std::ranges::find_if(all, [&](const Texts& texts) { return !texts[i].empty(); });
        if (given == all.end()) {
            continue;
        }
        const std::string& first = (*given)[i];
        const auto other = std::ranges::find_if(all, [&](const Texts& texts) {
            return texts[i] != first && (shared[i].target == nullptr || !texts[i].empty());
        });
        if (other != all.end()) {
            return invalid_argument(fmt::format("{}: rank {} has {} and rank {} has {}; give both programs the same",
                                                shared[i].name, given - all.begin(), first, other - all.begin(),
                                                (*other)[i]));
        }
        if (shared[i].target != nullptr) {
            *shared[i].target = first;
        }
    }
    return ok_status();
}

}  // namespace sluice::cli

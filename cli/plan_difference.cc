#include "cli/plan_difference.h"

#include "cli/json_output.h"
#include "planner/catalogue_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

namespace sluice::cli {

namespace {

constexpr std::size_t kMostPlanBytes = std::size_t{1} << 30;

/// The first parameter that differs, and in what; nothing when the demands are equal.
std::string demand_difference(const Demand& old_demand, const Demand& new_demand) {
    const auto count = std::min(old_demand.parameters.size(), new_demand.parameters.size());
    for (std::size_t i = 0; i < count; ++i) {
        const Parameter& was = old_demand.parameters[i];
        const Parameter& is = new_demand.parameters[i];
        if (was.name != is.name || was.dtype != is.dtype || was.shape != is.shape) {
            return fmt::format("parameter {} {} {}, now {} {} {}", was.name, to_string(was.dtype), to_string(was.shape),
                               is.name, to_string(is.dtype), to_string(is.shape));
        }
    }
    if (old_demand.parameters.size() != new_demand.parameters.size()) {
        return fmt::format("{} parameters, now {}", old_demand.parameters.size(), new_demand.parameters.size());
    }
    const auto key = [](const CopyRecord& r) {
        return std::tie(r.parameter, r.tensor, r.source_dtype, r.copy.src_offset, r.copy.dst_offset, r.copy.item,
                        r.copy.sizes, r.copy.src_strides, r.copy.dst_strides);
    };
    const auto before = [&](const CopyRecord* a, const CopyRecord* b) { return key(*a) < key(*b); };
    std::set<const CopyRecord*, decltype(before)> records(before);
    for (const CopyRecord& record : old_demand.records) {
        records.insert(&record);
    }
    std::size_t other = 0;
    ParameterId first = -1;
    for (const CopyRecord& record : new_demand.records) {
        if (!records.contains(&record)) {
            first = other++ == 0 ? record.parameter : first;
        }
    }
    if (first >= 0) {
        return fmt::format("{} of {} records are others, the first of parameter {}", other, new_demand.records.size(),
                           new_demand.parameters[static_cast<std::size_t>(first)].name);
    }
    return encode_demand(old_demand) == encode_demand(new_demand) ? std::string() : "other records or fills";
}

}  // namespace

Result<PlanFile> read_plan_file(const std::string& path) {
    SLUICE_ASSIGN_OR_RETURN(const std::string bytes, read_file(path, kMostPlanBytes));
    Result<PlanFile> file = decode_plan_file(bytes);
    return file.ok() ? std::move(file) : file.status().with_context(path);
}

std::string plan_differences(const std::string& path, const PlanFile& theirs, const PlanFile& ours) {
    if (theirs.plan.fingerprint == ours.plan.fingerprint && encode_plan_file(theirs) == encode_plan_file(ours)) {
        return {};
    }
    std::string text;
    const auto line = [&](const char* what, const auto& old_value, const auto& new_value) {
        if (!(old_value == new_value)) {
            text += fmt::format("{}: {} in {}, now {}\n", what, old_value, path, new_value);
        }
    };
    line("model", theirs.model, ours.model);
    line("tensors", theirs.catalogue.size(), ours.catalogue.size());
    if (const auto difference = first_difference(ours.catalogue, theirs.catalogue, "the present model", path)) {
        text += fmt::format("catalogue: {}\n", *difference);
    }
    line("trainer layout", theirs.trainer_layout, ours.trainer_layout);
    line("worker layouts", fmt::format("{}", fmt::join(theirs.worker_layouts, " ")),
         fmt::format("{}", fmt::join(ours.worker_layouts, " ")));
    line("chunk bytes", theirs.limits.chunk_bytes, ours.limits.chunk_bytes);
    line("distinct worker ranks", theirs.demands.size(), ours.demands.size());
    line("fingerprint", fmt::format("{:016x}", theirs.plan.fingerprint), fmt::format("{:016x}", ours.plan.fingerprint));
    if (theirs.catalogue_digest != ours.catalogue_digest) {
        return text;  // Records count tensors of the catalogue: those of two cannot be compared.
    }
    for (std::size_t i = 0; i < std::min(theirs.demands.size(), ours.demands.size()); ++i) {
        if (const std::string difference = demand_difference(theirs.demands[i], ours.demands[i]); !difference.empty()) {
            text += fmt::format("demand {}: {}\n", i, difference);
        }
        const Route& was = theirs.plan.routes[i];
        const Route& is = ours.plan.routes[i];
        if (encode_route(was) != encode_route(is)) {
            text +=
                fmt::format("demand {}: another route ({} chunks, now {})\n", i, was.chunks.size(), is.chunks.size());
        }
    }
    return text;
}

}  // namespace sluice::cli

#include "planner/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>
#include <utility>

namespace sluice {
namespace {

// Large enough for any cluster, small enough that products of a few of them stay far from 64 bits.
constexpr int kMaxSize = 1 << 20;

struct KeyValue {
    std::string_view key;
    std::string_view value;
};

Result<std::vector<KeyValue>> split_keys(std::string_view what, std::string_view text) {
    std::vector<KeyValue> out;
    while (!text.empty()) {
        const std::size_t comma = text.find(',');
        const std::string_view part = text.substr(0, comma);
        text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
        const std::size_t equals = part.find('=');
        if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size()) {
            return invalid_argument(fmt::format("{} layout: '{}' is not of the form key=value", what, part));
        }
        const KeyValue item{part.substr(0, equals), part.substr(equals + 1)};
        if (std::any_of(out.begin(), out.end(), [&](const KeyValue& other) { return other.key == item.key; })) {
            return invalid_argument(fmt::format("{} layout: key '{}' is given twice; give it once", what, item.key));
        }
        out.push_back(item);
        if (comma != std::string_view::npos && text.empty()) {
            return invalid_argument(fmt::format("{} layout: ends in a comma; remove it", what));
        }
    }
    return out;
}

Result<int> parse_number(std::string_view what, const KeyValue& item, int least) {
    int value = 0;
    const char* end = item.value.data() + item.value.size();
    const auto [stop, error] = std::from_chars(item.value.data(), end, value);
    if (error != std::errc() || stop != end || value < least || value > kMaxSize) {
        return invalid_argument(fmt::format("{} layout: {}={} must be a whole number from {} to {}", what, item.key,
                                            item.value, least, kMaxSize));
    }
    return value;
}

Result<std::vector<int>> parse_stages(std::string_view what, const KeyValue& item) {
    std::vector<int> stages;
    std::string_view rest = item.value;
    while (true) {
        const std::size_t slash = rest.find('/');
        const auto layers = parse_number(what, {item.key, rest.substr(0, slash)}, 1);
        if (!layers.ok()) {
            return invalid_argument(fmt::format(
                "{} layout: stages={} must be layer counts separated by '/', such as 12/12/10", what, item.value));
        }
        stages.push_back(*layers);
        if (slash == std::string_view::npos) {
            return stages;
        }
        rest = rest.substr(slash + 1);
    }
}

Status check_world_size(std::string_view what, std::initializer_list<int> factors) {
    std::int64_t ranks = 1;
    for (const int factor : factors) {
        ranks *= factor;
        if (ranks > kMaxSize) {
            return invalid_argument(
                fmt::format("{} layout: more than {} ranks; lower one of its sizes", what, kMaxSize));
        }
    }
    return ok_status();
}

std::string number_key(std::string_view key, int value) { return fmt::format("{}={}", key, value); }

}  // namespace

Result<TrainerLayout> TrainerLayout::parse(std::string_view text) {
    constexpr std::string_view kWhat = "trainer";
    TrainerLayout out;
    SLUICE_ASSIGN_OR_RETURN(const std::vector<KeyValue> items, split_keys(kWhat, text));
    const std::pair<std::string_view, int TrainerLayout::*> numbers[] = {
        {"tp", &TrainerLayout::tp}, {"pp", &TrainerLayout::pp},   {"dp", &TrainerLayout::dp},
        {"ep", &TrainerLayout::ep}, {"etp", &TrainerLayout::etp}, {"fsdp", &TrainerLayout::fsdp}};
    bool fsdp_given = false;
    for (const KeyValue& item : items) {
        const auto* number = std::find_if(std::begin(numbers), std::end(numbers),
                                          [&](const auto& candidate) { return candidate.first == item.key; });
        if (number != std::end(numbers)) {
            SLUICE_ASSIGN_OR_RETURN(out.*number->second, parse_number(kWhat, item, 1));
            fsdp_given = fsdp_given || item.key == "fsdp";
        } else if (item.key == "format") {
            if (item.value != "hf" && item.value != "megatron") {
                return invalid_argument(
                    fmt::format("trainer layout: format={} is not known; use hf or megatron", item.value));
            }
            out.format = item.value == "hf" ? TrainerFormat::kHf : TrainerFormat::kMegatron;
        } else if (item.key == "stages") {
            SLUICE_ASSIGN_OR_RETURN(out.stages, parse_stages(kWhat, item));
        } else {
            return invalid_argument(fmt::format(
                "trainer layout: key '{}' is not known; keys are tp, pp, dp, ep, etp, fsdp, format, stages", item.key));
        }
    }
    if (fsdp_given) {
        for (const KeyValue& item : items) {
            const bool number = item.key == "pp" || item.key == "ep" || item.key == "etp";
            if ((number && item.value != "1") || item.key == "stages" || (item.key == "format" && item.value != "hf")) {
                return invalid_argument(
                    fmt::format("trainer layout: fsdp={} cannot be combined with {}={}; fsdp goes with tp and dp only",
                                out.fsdp, item.key, item.value));
            }
        }
    }
    SLUICE_RETURN_IF_ERROR(check_world_size(kWhat, {out.tp, out.pp, out.dp, out.fsdp}));
    const std::int64_t stage_ranks = static_cast<std::int64_t>(out.tp) * out.dp;
    const std::int64_t expert_ranks = static_cast<std::int64_t>(out.ep) * out.etp;
    if (expert_ranks > stage_ranks || stage_ranks % expert_ranks != 0) {
        return invalid_argument(fmt::format("trainer layout: ep*etp={} must divide tp*dp={}; change ep, etp, tp or dp",
                                            expert_ranks, stage_ranks));
    }
    if (!out.stages.empty() && static_cast<int>(out.stages.size()) != out.pp) {
        return invalid_argument(
            fmt::format("trainer layout: stages={} names {} stages but pp={}; give one count per stage",
                        fmt::join(out.stages, "/"), out.stages.size(), out.pp));
    }
    return out;
}

std::string TrainerLayout::to_string() const {
    std::vector<std::string> parts{number_key("tp", tp)};
    if (fsdp > 1) {
        parts.push_back(number_key("fsdp", fsdp));
    }
    const std::pair<std::string_view, int> rest[] = {{"pp", pp}, {"dp", dp}, {"ep", ep}, {"etp", etp}};
    for (const auto& [key, value] : rest) {
        if (value > 1) {
            parts.push_back(number_key(key, value));
        }
    }
    if (format == TrainerFormat::kMegatron) {
        parts.emplace_back("format=megatron");
    }
    if (!stages.empty()) {
        parts.push_back(fmt::format("stages={}", fmt::join(stages, "/")));
    }
    return fmt::format("{}", fmt::join(parts, ","));
}

TrainerLayout::Coordinates TrainerLayout::coordinates(int rank) const {
    Coordinates c{};
    c.tp = rank % tp;
    c.fsdp = rank / tp % fsdp;
    c.dp = rank / (tp * fsdp) % dp;
    c.pp = rank / (tp * fsdp * dp);
    const int in_stage = rank % (tp * fsdp * dp);
    c.etp = in_stage % etp;
    c.ep = in_stage / etp % ep;
    c.edp = in_stage / (etp * ep);
    return c;
}

Result<std::vector<int>> TrainerLayout::stage_bounds(int layers) const {
    std::vector<int> bounds{0};
    if (stages.empty()) {
        if (pp > layers) {
            return invalid_argument(
                fmt::format("trainer layout: pp={} is more than the model's {} layers; lower pp", pp, layers));
        }
        for (int s = 0; s < pp; ++s) {
            bounds.push_back(bounds.back() + layers / pp + (s < layers % pp ? 1 : 0));
        }
        return bounds;
    }
    for (const int count : stages) {
        bounds.push_back(bounds.back() + count);
    }
    if (static_cast<int>(stages.size()) != pp || bounds.back() != layers) {
        return invalid_argument(
            fmt::format("trainer layout: stages={} adds up to {} layers in {} stages, but the model has {} "
                        "layers and pp={}; make them agree",
                        fmt::join(stages, "/"), bounds.back(), stages.size(), layers, pp));
    }
    return bounds;
}

Result<WorkerLayout> WorkerLayout::parse(std::string_view text) {
    constexpr std::string_view kWhat = "worker";
    WorkerLayout out;
    SLUICE_ASSIGN_OR_RETURN(const std::vector<KeyValue> items, split_keys(kWhat, text));
    for (const KeyValue& item : items) {
        if (item.key == "tp") {
            SLUICE_ASSIGN_OR_RETURN(out.tp, parse_number(kWhat, item, 1));
        } else if (item.key == "dp") {
            SLUICE_ASSIGN_OR_RETURN(out.dp, parse_number(kWhat, item, 1));
        } else if (item.key == "replicas") {
            SLUICE_ASSIGN_OR_RETURN(out.replicas, parse_number(kWhat, item, 1));
        } else if (item.key == "redundant") {
            SLUICE_ASSIGN_OR_RETURN(out.redundant, parse_number(kWhat, item, 0));
        } else if (item.key == "ep") {
            if (item.value != "on" && item.value != "off") {
                return invalid_argument(fmt::format("worker layout: ep={} is not known; use on or off", item.value));
            }
            out.ep = item.value == "on";
        } else if (item.key == "placement") {
            if (item.value != "linear" && item.value != "round_robin") {
                return invalid_argument(
                    fmt::format("worker layout: placement={} is not known; use linear or round_robin", item.value));
            }
            out.placement = item.value == "linear" ? ExpertPlacement::kLinear : ExpertPlacement::kRoundRobin;
        } else {
            return invalid_argument(fmt::format(
                "worker layout: key '{}' is not known; keys are tp, dp, ep, replicas, placement, redundant", item.key));
        }
    }
    SLUICE_RETURN_IF_ERROR(check_world_size(kWhat, {out.tp, out.dp, out.replicas}));
    return out;
}

std::string WorkerLayout::to_string() const {
    std::vector<std::string> parts{number_key("tp", tp)};
    if (dp > 1) {
        parts.push_back(number_key("dp", dp));
    }
    if (ep) {
        parts.emplace_back("ep=on");
    }
    if (replicas > 1) {
        parts.push_back(number_key("replicas", replicas));
    }
    if (placement == ExpertPlacement::kRoundRobin) {
        parts.emplace_back("placement=round_robin");
    }
    if (redundant > 0) {
        parts.push_back(number_key("redundant", redundant));
    }
    if (!expert_map.empty()) {
        parts.push_back(fmt::format("expert_map={:016x}", expert_map.digest()));
    }
    return fmt::format("{}", fmt::join(parts, ","));
}

}  // namespace sluice

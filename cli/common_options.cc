#include "cli/common_options.h"

#include "cli/json_output.h"
#include "runtime/base/units.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <string_view>

namespace sluice::cli {

namespace {

template <class Layout>
Result<Layout> with_option(Result<Layout> layout, const char* option, const std::string& text) {
    if (!layout.ok()) {
        return layout.status().with_context(fmt::format("{} {}", option, text));
    }
    return layout;
}

std::optional<int> whole_number(std::string_view text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

Result<ExpertMap> read_expert_map(const std::string& path) {
    constexpr std::size_t kMostBytes = std::size_t{64} << 20;
    SLUICE_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMostBytes));
    Result<ExpertMap> map = ExpertMap::parse(text);
    return map.ok() ? std::move(map) : map.status().with_context(path);
}

}  // namespace

void LayoutOptions::add_to(CLI::App& command) {
    command
        .add_option(
            "--model", model,
            "What to move: a catalogue's name (Qwen3-30B-A3B), a catalogue file (.json), or a Hugging Face directory")
        ->required()
        ->type_name("M");
    command
        .add_option("--set", sets,
                    "Override a config field; undotted = the text model; repeatable (num_hidden_layers=4)")
        ->type_name("KEY=VALUE")
        ->expected(1)
        ->take_all();
    command
        .add_option("--weights", weights,
                    "Form of generated weights: as a trainer holds them, or as published (fp8, mxfp4)")
        ->check(CLI::IsMember({"checkpoint", "published"}))
        ->capture_default_str();
    command
        .add_option("--trainer", trainer,
                    "Trainer layout: tp pp dp ep etp fsdp, format=hf|megatron, stages=a/b/c (tp=4,pp=2,dp=2,ep=8)")
        ->required()
        ->type_name("LAYOUT");
    command
        .add_option("--worker", workers,
                    "Worker layout: tp dp ep=on|off replicas placement=linear|round_robin redundant=N; one per pool "
                    "(tp=2,ep=on,replicas=2)")
        ->required()
        ->type_name("LAYOUT")
        ->expected(1)
        ->take_all();
    command
        .add_option(
            "--expert-map", expert_maps,
            "Where a rebalancing engine keeps its experts: a JSON file {\"physical_to_logical\": {\"LAYER\": [expert "
            "of slot 0, ...]}}; with several pools POOL:FILE, counted from 0; repeatable")
        ->type_name("[POOL:]FILE")
        ->expected(1)
        ->take_all();
    command
        .add_option("--source", source,
                    "How trainers offer weights: readable in place all the time, or gathered group by group")
        ->check(CLI::IsMember({"resident", "gathered"}))
        ->capture_default_str();
    command.add_option("--path", path, "How bytes travel; auto decides per chunk")
        ->check(CLI::IsMember({"auto", "direct", "packed", "mapped"}))
        ->capture_default_str();
    command
        .add_option(
            "--chunk-bytes", chunk_bytes,
            "Most bytes of one request (default 4M, sync on GPUs 256M, or SLUICE_CHUNK_BYTES); sizes take K, M, G")
        ->type_name("SIZE");
}

ModelChoice LayoutOptions::model_choice() const {
    return {model, sets, weights == "published" ? WeightForm::kPublished : WeightForm::kCheckpoint};
}

Result<TrainerLayout> LayoutOptions::trainer_layout() const {
    return with_option(TrainerLayout::parse(trainer), "--trainer", trainer);
}

Result<std::vector<WorkerLayout>> LayoutOptions::worker_layouts() const {
    std::vector<WorkerLayout> layouts;
    for (const std::string& text : workers) {
        SLUICE_ASSIGN_OR_RETURN(WorkerLayout layout, with_option(WorkerLayout::parse(text), "--worker", text));
        layouts.push_back(std::move(layout));
    }
    for (const std::string& text : expert_maps) {
        const std::size_t colon = text.find(':');
        const std::optional<int> given =
            colon == std::string::npos ? std::nullopt : whole_number(std::string_view(text).substr(0, colon));
        const int pool = given.value_or(0);
        if (pool < 0 || static_cast<std::size_t>(pool) >= layouts.size() || (!given && layouts.size() > 1)) {
            return invalid_argument(fmt::format("--expert-map {}: give it as POOL:FILE with a pool from 0 to {}", text,
                                                layouts.size() - 1));
        }
        ExpertMap& map = layouts[static_cast<std::size_t>(pool)].expert_map;
        if (!map.empty()) {
            return invalid_argument(fmt::format("--expert-map {}: pool {} has one already", text, pool));
        }
        SLUICE_ASSIGN_OR_RETURN(map, read_expert_map(given ? text.substr(colon + 1) : text));
    }
    return layouts;
}

SourceKind LayoutOptions::source_kind() const {
    return source == "gathered" ? SourceKind::kGathered : SourceKind::kResident;
}

Result<RouteOptions> LayoutOptions::route_options(const Settings& settings) const {
    RouteOptions options;
    options.chunk_bytes = settings.chunk_bytes;
    options.direct_run = settings.direct_run_bytes;
    // As measured: a piece that is one run already is worth its get at half the size.
    options.direct_piece = settings.direct_run_bytes / 2;
    if (!chunk_bytes.empty()) {
        SLUICE_ASSIGN_OR_RETURN(options.chunk_bytes, parse_size("--chunk-bytes", chunk_bytes, kMinChunkBytes));
    }
    using Choice = RouteOptions::PathChoice;
    options.path = path == "direct"   ? Choice::kDirect
                   : path == "packed" ? Choice::kPacked
                   : path == "mapped" ? Choice::kMapped
                                      : Choice::kAuto;
    return options;
}

Result<int> parse_count(const char* option, const std::string& text, int least) {
    const std::optional<int> value = whole_number(text);
    if (!value || *value < least) {
        return invalid_argument(fmt::format("{} {}: it must be a whole number of at least {}", option, text, least));
    }
    return *value;
}

Result<std::int64_t> parse_size(const char* option, const std::string& text, std::int64_t least) {
    Result<std::int64_t> bytes = parse_bytes(text);
    if (!bytes.ok()) {
        return bytes.status().with_context(option);
    }
    if (*bytes < least) {
        return invalid_argument(fmt::format("{} {}: it must be at least {} bytes", option, text, least));
    }
    return bytes;
}

Result<std::pair<int, int>> parse_rank_value(const char* option, const std::string& text, int least, int most) {
    const std::size_t colon = text.find(':');
    const std::optional<int> rank = whole_number(std::string_view(text).substr(0, colon));
    const std::optional<int> value =
        colon == std::string::npos ? std::nullopt : whole_number(std::string_view(text).substr(colon + 1));
    if (!rank || !value || *rank < 0 || *value < least || *value > most) {
        return invalid_argument(
            fmt::format("{} {}: give it as RANK:VALUE with a value from {} to {}", option, text, least, most));
    }
    return std::pair{*rank, *value};
}

}  // namespace sluice::cli

#include "cli/sync_options.h"

#include "runtime/base/units.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <limits>

namespace sluice::cli {

namespace {

/// "RANK@VERSION.GROUP"
Result<Death> parse_death(const std::string& text) {
    const std::size_t at = text.find('@');
    const std::size_t dot = text.find('.', at == std::string::npos ? 0 : at);
    if (at == std::string::npos || dot == std::string::npos) {
        return invalid_argument(fmt::format("--die {}: give it as RANK@VERSION.GROUP", text));
    }
    SLUICE_ASSIGN_OR_RETURN(const int rank, parse_count("--die rank", text.substr(0, at), 0));
    SLUICE_ASSIGN_OR_RETURN(const int version, parse_count("--die version", text.substr(at + 1, dot - at - 1), 1));
    SLUICE_ASSIGN_OR_RETURN(const int group, parse_count("--die group", text.substr(dot + 1), 0));
    return Death{rank, static_cast<std::uint64_t>(version), group};
}

/// "90s"; a number alone is seconds.
Result<std::chrono::milliseconds> parse_timeout(const std::string& text) {
    const bool bare = !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
    Result<std::chrono::milliseconds> span = parse_duration(bare ? text + "s" : text);
    if (!span.ok()) {
        return span.status().with_context("--timeout");
    }
    if (*span <= std::chrono::milliseconds::zero()) {
        return invalid_argument(fmt::format("--timeout {}: it must be longer than 0", text));
    }
    return span;
}

/// "cuda", or "TRAINER:WORKER".
Result<MemoryChoice> parse_memory(const std::string& text) {
    const auto kind = [&](const std::string& name) -> Result<MemoryKind> {
        if (name == "host") {
            return MemoryKind::kHost;
        }
        if (name == "cuda") {
            return MemoryKind::kCuda;
        }
        return invalid_argument(fmt::format(
            "--memory {}: use host, cuda, or one of them for trainers and one for workers (host:cuda)", text));
    };
    const std::size_t colon = text.find(':');
    MemoryChoice choice;
    SLUICE_ASSIGN_OR_RETURN(choice.trainer, kind(text.substr(0, colon)));
    SLUICE_ASSIGN_OR_RETURN(choice.worker, kind(colon == std::string::npos ? text : text.substr(colon + 1)));
    return choice;
}

/// "[RANK=]NAME[,NAME]", each for one rank or for all that have none of their own.
Result<NetDevices> parse_net_devices(const std::vector<std::string>& texts, int ranks) {
    NetDevices out;
    for (const std::string& text : texts) {
        const std::size_t sign = text.find('=');
        const std::string names = text.substr(sign == std::string::npos ? 0 : sign + 1);
        if (names.empty()) {
            return invalid_argument(
                fmt::format("--net-device {}: give it as NAME, or RANK=NAME for one rank, as in 0=mlx5_0:1", text));
        }
        std::string* place = &out.all;
        if (sign != std::string::npos) {
            SLUICE_ASSIGN_OR_RETURN(const int rank, parse_count("--net-device rank", text.substr(0, sign), 0));
            if (rank >= ranks) {
                return invalid_argument(fmt::format("--net-device {}: the layouts make {} ranks, from 0", text, ranks));
            }
            place = &out.by_world_rank[rank];
        }
        if (!place->empty()) {
            return invalid_argument(
                fmt::format("--net-device {}: '{}' was given before; name several devices with commas", text, *place));
        }
        *place = names;
    }
    return out;
}

}  // namespace

const char* verify_name(VerifyMode mode) {
    switch (mode) {
        case VerifyMode::kOff:
            return "off";
        case VerifyMode::kDigest:
            return "digest";
        case VerifyMode::kFull:
            return "full";
    }
    return "off";
}

int SyncOptions::worker_ranks() const {
    int ranks = 0;
    for (const WorkerLayout& pool : workers) {
        ranks += pool.world_size();
    }
    return ranks;
}

void SyncOptionsParser::add_to(CLI::App& command) {
    layout_.add_to(command);
    const auto list = [&](const char* name, std::vector<std::string>& values, const char* help, const char* type) {
        command.add_option(name, values, help)->type_name(type)->expected(1)->take_all();
    };
    command.add_option("--versions", versions_, "How many versions to move, one after the other")
        ->type_name("N")
        ->capture_default_str();
    command
        .add_option("--verify", verify_,
                    "What is checked: every element against its value, chunk checksums, or nothing")
        ->check(CLI::IsMember({"full", "digest", "off"}))
        ->capture_default_str();
    command
        .add_option(
            "--hook", hook_,
            "What workers make of linear and expert weights, layer by layer: fp8-blocks quantises them to f8e4m3 "
            "by blocks of 128 x 128, and keeps w_kc and w_vc of latent attention")
        ->check(CLI::IsMember({"none", "fp8-blocks"}))
        ->capture_default_str();
    command
        .add_option("--layers-in-flight", layers_in_flight_,
                    "With --hook: layers that a worker has buffers for (default: pipeline stages + 1)")
        ->type_name("N");
    command
        .add_option("--dump", dump_,
                    "After the last version, write each worker's parameters to DIR/worker-<rank>.safetensors")
        ->type_name("DIR");
    command
        .add_option("--json", json_,
                    "Write the results as JSON to FILE; - is stdout, and the table then goes to stderr")
        ->type_name("FILE");
    command
        .add_option("--trace", trace_,
                    "Write what every rank did when to FILE, as Chrome trace events; open it in ui.perfetto.dev")
        ->type_name("FILE");
    command
        .add_option("--role", role_,
                    "What this rank is; without it the rank decides: trainers first, then the pools in order")
        ->check(CLI::IsMember({"trainer", "worker"}));
    command
        .add_option("--memory", memory_, "Where weights lie: host, cuda, or trainers' and workers' apart (host:cuda)")
        ->type_name("KIND")
        ->capture_default_str();
    command
        .add_option("--device", device_, "CUDA device of this rank (default: its rank modulo the number of devices)")
        ->type_name("N");
    list("--net-device", net_devices_,
         "Network devices as UCX names them (mlx5_0:1), several with commas; with a world rank, for that one; "
         "repeatable",
         "[RANK=]NAME");
    command.add_flag(
        "--staged", staged_,
        "Weights in GPU memory go through pinned host memory, also where links reach GPUs (or SLUICE_STAGED)");
    command
        .add_option(
            "--gather", gather_,
            "How trainers with --source gathered put groups together: pulls from each other, or NCCL (weights in "
            "GPU memory, a GPU for each trainer)")
        ->check(CLI::IsMember({"pull", "nccl"}))
        ->capture_default_str();
    command
        .add_option("--credit", credit_,
                    "Groups a trainer may have published and unreleased (default 1, or SLUICE_CREDIT)")
        ->type_name("N");
    command
        .add_option("--staging", staging_,
                    "A worker's staging memory (default 64M, on GPUs 1G, or SLUICE_STAGING_BYTES); at least one chunk")
        ->type_name("SIZE");
    command
        .add_option(
            "--slots", slots_,
            "Most memory for packed chunks of a trainer rank, in whole chunks (default 8, on GPUs 16, or SLUICE_SLOTS)")
        ->type_name("N");
    command
        .add_option(
            "--inflight", inflight_,
            "Most bytes a worker has asked for and not received (default 32M, on GPUs 512M, or SLUICE_INFLIGHT_BYTES)")
        ->type_name("SIZE");
    command
        .add_option("--timeout", timeout_,
                    "Limit of one version, and of set-up: 90s, 2min, or seconds (default 300s, or SLUICE_SYNC_TIMEOUT)")
        ->type_name("TIME");
    list("--slow-worker", slow_workers_, "For tests: worker RANK waits MS milliseconds after each chunk; repeatable",
         "RANK:MS");
    list("--slow-owner", slow_owners_, "For tests: trainer RANK serves at PERCENT of its speed; repeatable",
         "RANK:PERCENT");
    command.add_option("--die", die_, "For tests: world rank RANK kills itself at the GROUP-th group of VERSION")
        ->type_name("RANK@VERSION.GROUP");
}

Result<SyncOptions> SyncOptionsParser::take(Settings& settings) const {
    constexpr int kAny = std::numeric_limits<int>::max();
    SyncOptions options;
    options.model = layout_.model_choice();
    SLUICE_ASSIGN_OR_RETURN(options.trainer, layout_.trainer_layout());
    SLUICE_ASSIGN_OR_RETURN(options.workers, layout_.worker_layouts());
    options.source = layout_.source_kind();
    SLUICE_ASSIGN_OR_RETURN(options.memory, parse_memory(memory_));
    if (!device_.empty()) {
        SLUICE_ASSIGN_OR_RETURN(options.memory.device, parse_count("--device", device_, 0));
    }
    if (!options.memory.any_cuda() && (staged_ || !device_.empty())) {
        return invalid_argument(fmt::format("{}: weights are in host memory; add --memory cuda or leave it out",
                                            staged_ ? "--staged" : "--device " + device_));
    }
    options.gather_by_nccl = gather_ == "nccl";
    if (options.gather_by_nccl &&
        (options.source != SourceKind::kGathered || options.memory.trainer != MemoryKind::kCuda)) {
        return invalid_argument("--gather nccl: it needs --source gathered and --memory cuda; leave it out");
    }
    settings.staged = settings.staged || staged_;
    if (!staging_.empty()) {
        SLUICE_ASSIGN_OR_RETURN(settings.staging_bytes, parse_size("--staging", staging_, 1));
        settings.given.emplace_back("SLUICE_STAGING_BYTES");
    }
    if (!inflight_.empty()) {
        SLUICE_ASSIGN_OR_RETURN(settings.inflight_bytes, parse_size("--inflight", inflight_, 1));
        settings.given.emplace_back("SLUICE_INFLIGHT_BYTES");
    }
    if (options.memory.any_cuda()) {
        settings.adapt_to_device();
    }
    SLUICE_ASSIGN_OR_RETURN(options.route, layout_.route_options(settings));
    settings.set_chunk_bytes(options.route.chunk_bytes);
    SLUICE_ASSIGN_OR_RETURN(const int versions, parse_count("--versions", versions_, 1));
    options.versions = static_cast<std::uint64_t>(versions);
    options.verify = verify_ == "full" ? VerifyMode::kFull : verify_ == "off" ? VerifyMode::kOff : VerifyMode::kDigest;
    options.fp8_blocks = hook_ == "fp8-blocks";
    options.layers_in_flight = options.trainer.pp + 1;
    if (!layers_in_flight_.empty()) {
        SLUICE_ASSIGN_OR_RETURN(options.layers_in_flight, parse_count("--layers-in-flight", layers_in_flight_, 1));
        if (!options.fp8_blocks) {
            return invalid_argument(fmt::format(
                "--layers-in-flight {}: only workers with hooks have layer buffers; add --hook", layers_in_flight_));
        }
    }
    options.dump_directory = dump_;
    options.json_target = json_;
    options.trace_target = trace_;
    if (!role_.empty()) {
        options.role = role_ == "trainer" ? Role::kTrainer : Role::kWorker;
    }
    if (!credit_.empty()) {
        SLUICE_ASSIGN_OR_RETURN(settings.credit, parse_count("--credit", credit_, 1));
    }
    if (!slots_.empty()) {
        SLUICE_ASSIGN_OR_RETURN(settings.slots, parse_count("--slots", slots_, 1));
    }
    if (!timeout_.empty()) {
        SLUICE_ASSIGN_OR_RETURN(settings.sync_timeout, parse_timeout(timeout_));
        settings.connect_timeout = settings.sync_timeout;
    }
    for (const std::string& text : slow_workers_) {
        SLUICE_ASSIGN_OR_RETURN(const auto slow, parse_rank_value("--slow-worker", text, 0, kAny));
        options.slow_workers.push_back(slow);
    }
    for (const std::string& text : slow_owners_) {
        SLUICE_ASSIGN_OR_RETURN(const auto slow, parse_rank_value("--slow-owner", text, 1, 100));
        options.slow_owners.push_back(slow);
    }
    if (!die_.empty()) {
        SLUICE_ASSIGN_OR_RETURN(options.death, parse_death(die_));
    }
    SLUICE_ASSIGN_OR_RETURN(options.net_devices,
                            parse_net_devices(net_devices_, options.trainer_ranks() + options.worker_ranks()));
    for (const auto& [rank, value] : options.slow_workers) {
        if (rank >= options.worker_ranks()) {
            return invalid_argument(fmt::format("--slow-worker {}:{}: the layouts make {} workers, from 0", rank, value,
                                                options.worker_ranks()));
        }
    }
    for (const auto& [rank, value] : options.slow_owners) {
        if (rank >= options.trainer_ranks()) {
            return invalid_argument(fmt::format("--slow-owner {}:{}: the layout makes {} trainers, from 0", rank, value,
                                                options.trainer_ranks()));
        }
    }
    SLUICE_RETURN_IF_ERROR(settings.check());
    return options;
}

}  // namespace sluice::cli

// One worker pulls its part of a model from one trainer: a raw get of the same bytes, a memcpy of the same bytes, and the real
// plan by each path, repetition by repetition in one run, so that all of them meet the same machine.
//   mpirun --bind-to none -n 2 bench_pull [--json FILE]
#include "bench/known_series.h"
#include "bench/pull_pair.h"
#include "bench/raw_get.h"
#include "bench/spread.h"
#include "cli/common_options.h"
#include "cli/exit_code.h"
#include "cli/json_output.h"
#include "cli/model_source.h"
#include "planner/dry_run.h"
#include "planner/plan_summary.h"
#include "planner/trainer_ownership.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "runtime/services/log.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>

namespace sluice::bench {
namespace {

using Choice = RouteOptions::PathChoice;
using cli::Model;

struct Options {
    cli::ModelChoice moe = {
        "Qwen3-30B-A3B", {"num_hidden_layers=3", "num_experts=64", "vocab_size=32768"}, WeightForm::kCheckpoint};
    cli::ModelChoice dense = {"Llama-3.1-8B", {"num_hidden_layers=4", "vocab_size=16384"}, WeightForm::kCheckpoint};
    int repetitions = 5;
    bool raw_only = false;
    bool digest = false;
    std::string bytes = "2G";
    std::string json;
    std::vector<std::string> only;
};

/// Which of a worker's records a series moves, by the bytes that lie together in the checkpoint.
struct Runs {
    std::int64_t least = 1;
    std::int64_t most = std::numeric_limits<std::int64_t>::max();
};
struct Series {
    const char* name;
    const char* worker;
    Runs runs;
    Choice path;
    bool dense = false;
};
constexpr std::int64_t kLong = 64 << 10;
constexpr Series kSeries[] = {
    {"tp2 rows direct", "tp=2", {kLong}, Choice::kDirect},
    {"tp2 rows mapped", "tp=2", {kLong}, Choice::kMapped},
    {"tp2 packed", "tp=2", {}, Choice::kPacked},
    {"tp2 768 B runs packed", "tp=2", {1, 4095}, Choice::kPacked},
    {"tp2 768 B runs mapped", "tp=2", {1, 4095}, Choice::kMapped},
    {"tp4 rows direct", "tp=4", {kLong}, Choice::kDirect},
    {"tp4 packed", "tp=4", {}, Choice::kPacked},
    {"tp4 mapped", "tp=4", {}, Choice::kMapped},
    {"experts direct", "tp=2,ep=on", {kLong}, Choice::kDirect},
    {"experts packed", "tp=2,ep=on", {}, Choice::kPacked},
    {"experts mapped", "tp=2,ep=on", {}, Choice::kMapped},
    {"tp2 4-14 KiB runs packed", "tp=2", {4 << 10, kLong - 1}, Choice::kPacked, true},
    {"tp2 4-14 KiB runs mapped", "tp=2", {4 << 10, kLong - 1}, Choice::kMapped, true},
};

const char* name_of(Choice path) {
    return path == Choice::kDirect ? "direct" : path == Choice::kPacked ? "packed" : "mapped";
}

std::vector<double> rates(std::int64_t bytes, const std::vector<double>& seconds) {
    std::vector<double> out;
    for (const double s : seconds) {
        out.push_back(static_cast<double>(bytes) / s);
    }
    return out;
}

std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> out;
    for (std::size_t i = 0; i < a.size(); ++i) {
        out.push_back(a[i] / b[i]);
    }
    return out;
}

Status run_raw(const Options& options, const Settings& settings, Bootstrap& bootstrap, nlohmann::json& out) {
    SLUICE_ASSIGN_OR_RETURN(const std::int64_t bytes, cli::parse_size("--bytes", options.bytes, 1));
    SLUICE_ASSIGN_OR_RETURN(Buffer memory, Buffer::allocate(bytes, MemoryKind::kHost));
    std::memset(memory.data(), 1, memory.size());
    const Deadline deadline = Deadline::after(settings.sync_timeout);
    SLUICE_ASSIGN_OR_RETURN(auto raw, RawGet::create(settings, bootstrap, memory.bytes(), deadline));
    if (bootstrap.rank() > 0) {
        std::vector<double> seconds;
        for (int i = 0; i <= options.repetitions; ++i) {
            SLUICE_ASSIGN_OR_RETURN(const double took, raw->run(bytes));
            if (i > 0) {
                seconds.push_back(took);
            }
        }
        out["raw_get"] = {{"bytes", bytes},
                          {"bytes_per_second", spread(rates(bytes, seconds))},
                          {"transport", raw->link().transport},
                          {"one_sided", raw->link().link_class == transport::LinkClass::kOneSided}};
    }
    SLUICE_RETURN_IF_ERROR(bootstrap.barrier(deadline));
    if (bootstrap.rank() > 0) {
        raw.reset();
    }
    return bootstrap.barrier(deadline);
}

/// What the worker of a series moves.
Result<Demand> demand_of(const Model& model, const Series& series) {
    SLUICE_ASSIGN_OR_RETURN(const WorkerLayout layout, WorkerLayout::parse(series.worker));
    SLUICE_ASSIGN_OR_RETURN(Demand demand, dry_run(model.catalogue, model.config, layout, 0));
    std::erase_if(demand.records, [&](const CopyRecord& record) {
        const std::int64_t run = coalesce(record.copy).item;
        return run < series.runs.least || run > series.runs.most;
    });
    return demand;
}

void print_head() {
    fmt::print(stderr, "{:26}{:>10}{:>12}{:>12}{:>12}{:>9}{:>14}{:>9}\n", "series", "bytes", "get/s", "memcpy/s",
               "pull/s", "of get", "spread", "of copy");
}

void add_row(const Series& series, const PullTimings& t, nlohmann::json& rows) {
    const auto of_get = ratios(t.raw, t.pull);
    const auto of_copy = ratios(t.copy, t.pull);
    rows.push_back({{"name", series.name},
                    {"worker", series.worker},
                    {"path", name_of(series.path)},
                    {"bytes", t.bytes},
                    {"raw_get_bytes_per_second", spread(rates(t.bytes, t.raw))},
                    {"memcpy_bytes_per_second", spread(rates(t.bytes, t.copy))},
                    {"pull_bytes_per_second", spread(rates(t.bytes, t.pull))},
                    {"share_of_raw_get", spread(of_get)},
                    {"share_of_memcpy", spread(of_copy)}});
    const auto rate = [&](const std::vector<double>& seconds) {
        return human_bytes(static_cast<std::int64_t>(median(rates(t.bytes, seconds))));
    };
    fmt::print(stderr, "{:26}{:>10}{:>12}{:>12}{:>12}{:>9.3f}{:>14}{:>9.3f}\n", series.name, human_bytes(t.bytes),
               rate(t.raw), rate(t.copy), rate(t.pull), median(of_get),
               fmt::format("{:.3f}-{:.3f}", *std::min_element(of_get.begin(), of_get.end()),
                           *std::max_element(of_get.begin(), of_get.end())),
               median(of_copy));
}

/// The series of one of the two models.
Status run_series(const Options& options, const Settings& settings, Bootstrap& bootstrap, bool dense,
                  nlohmann::json& out) {
    std::vector<const Series*> wanted;
    for (const Series& series : kSeries) {
        if (series.dense == dense && (options.only.empty() || std::find(options.only.begin(), options.only.end(),
                                                                        series.name) != options.only.end())) {
            wanted.push_back(&series);
        }
    }
    if (wanted.empty()) {
        return ok_status();
    }
    SLUICE_ASSIGN_OR_RETURN(const Model model, cli::open_model(dense ? options.dense : options.moe));
    SLUICE_ASSIGN_OR_RETURN(Ownership ownership, trainer_ownership(model.catalogue, model.config, TrainerLayout{}, 0,
                                                                   SourceKind::kResident));
    PullPair pair({options.repetitions, options.digest}, settings, bootstrap, model, std::move(ownership));
    SLUICE_RETURN_IF_ERROR(pair.prepare());
    for (const Series* series : wanted) {
        SLUICE_ASSIGN_OR_RETURN(const Demand demand, demand_of(model, *series));
        SLUICE_ASSIGN_OR_RETURN(const PullTimings timings, pair.run(demand, series->path));
        if (!pair.trainer()) {
            add_row(*series, timings, out["series"]);
        }
    }
    if (!pair.trainer()) {
        out["transport"] = pair.link().transport;
        out["one_sided"] = pair.link().link_class == transport::LinkClass::kOneSided;
        out["verify"] = options.digest ? "digest" : "off";
        pair.close();
    }
    return pair.together();
}

Status run_all_series(const Options& options, const Settings& settings, Bootstrap& bootstrap, nlohmann::json& out) {
    out["series"] = nlohmann::json::array();
    if (bootstrap.rank() == 1) {
        print_head();
    }
    SLUICE_RETURN_IF_ERROR(run_series(options, settings, bootstrap, false, out));
    return run_series(options, settings, bootstrap, true, out);
}

cli::ExitCode run(const Options& options) {
    if (const Status known = check_series(options.only, kSeries); !known.ok()) {
        return cli::report(known);
    }
    const Result<Settings> settings = Settings::from_environment();
    if (!settings.ok()) {
        return cli::report(settings.status());
    }
    log::set_level(LogLevel::kWarning);
    const auto mpi = MpiBootstrap::create();
    if (!mpi.ok()) {
        return cli::report(mpi.status());
    }
    Bootstrap& bootstrap = **mpi;
    if (bootstrap.size() != 2) {
        return cli::report(invalid_argument(
            fmt::format("two ranks are measured, but {} were started; use mpirun -n 2", bootstrap.size())));
    }
    nlohmann::json out = {{"schema", 1}, {"bench", "pull"}, {"repetitions", options.repetitions}};
    Status status;
    if (options.raw_only) {
        status = run_raw(options, *settings, bootstrap, out);
    } else {
        status = run_all_series(options, *settings, bootstrap, out);
    }
    if (!status.ok()) {
        return cli::report(status);
    }
    if (bootstrap.rank() == 1) {
        status = cli::Output(options.json).write_json(out);
    }
    (*mpi)->finalize();
    return status.ok() ? cli::kDone : cli::report(status);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
    sluice::bench::Options options;
    CLI::App app("One worker pulls its part of a model from one trainer, by each path; under mpirun -n 2");
    app.add_option("--model", options.moe.model, "Model of all series but the dense one's: name, file or directory")
        ->capture_default_str();
    app.add_option("--set", options.moe.sets, "Override a config field of that model; repeatable")
        ->expected(1)
        ->take_all();
    app.add_option("--repetitions", options.repetitions, "Of each series; one more warms up")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--series", options.only, "Only this series; repeatable")->expected(1)->take_all();
    app.add_flag("--digest", options.digest, "With checksums, as `sluice sync` has them by default");
    app.add_flag("--raw-only", options.raw_only, "Only the raw get, of --bytes");
    app.add_option("--bytes", options.bytes, "What --raw-only reads")->capture_default_str();
    app.add_option("--json", options.json, "Write the results as JSON to FILE")->type_name("FILE");
    CLI11_PARSE(app, argc, argv);
    return sluice::bench::run(options);
}

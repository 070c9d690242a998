// One worker pulls its part of a model from one trainer: a raw get of the same bytes, a memcpy of the same bytes, and the real
// plan by each path, repetition by repetition in one run, so that all of them meet the same machine.
//   mpirun -n 2 bench_pull [--json FILE]
#include "bench/raw_get.h"
#include "bench/spread.h"
#include "cli/common_options.h"
#include "cli/exit_code.h"
#include "cli/json_output.h"
#include "cli/model_source.h"
#include "cli/trainer_weights.h"
#include "cli/weight_values.h"
#include "cli/worker_parameters.h"
#include "planner/dry_run.h"
#include "planner/plan_summary.h"
#include "planner/trainer_ownership.h"
#include "runtime/exchange/agreement.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "runtime/services/log.h"
#include "trainer/resident_source.h"
#include "trainer/trainer.h"
#include "transport/ucx/ucx_transport.h"
#include "worker/worker.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>

namespace sluice::bench {
namespace {

using Clock = EventLoop::Clock;
using Choice = RouteOptions::PathChoice;
using cli::Model;

struct Options {
    std::string model = "Qwen3-30B-A3B";
    std::vector<std::string> sets = {"num_hidden_layers=3", "num_experts=32"};
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
};
constexpr std::int64_t kLong = 64 << 10;
constexpr Series kSeries[] = {
    {"tp2 rows direct", "tp=2", {kLong}, Choice::kDirect},
    {"tp2 rows mapped", "tp=2", {kLong}, Choice::kMapped},
    {"tp2 packed", "tp=2", {}, Choice::kPacked},
    {"tp2 4 KiB runs mapped", "tp=2", {4 << 10, kLong - 1}, Choice::kMapped},
    {"tp2 768 B runs packed", "tp=2", {1, 4095}, Choice::kPacked},
    {"tp2 768 B runs mapped", "tp=2", {1, 4095}, Choice::kMapped},
    {"tp4 rows direct", "tp=4", {kLong}, Choice::kDirect},
    {"tp4 packed", "tp=4", {}, Choice::kPacked},
    {"tp4 mapped", "tp=4", {}, Choice::kMapped},
    {"experts direct", "tp=2,ep=on", {kLong}, Choice::kDirect},
    {"experts packed", "tp=2,ep=on", {}, Choice::kPacked},
    {"experts mapped", "tp=2,ep=on", {}, Choice::kMapped},
};

const char* name_of(Choice path) {
    return path == Choice::kDirect ? "direct" : path == Choice::kPacked ? "packed" : "mapped";
}

struct Timings {
    std::vector<double> raw, copy, pull;
    std::int64_t bytes = 0;
};

/// The two ranks, and what they keep from series to series.
class Bench {
public:
    Bench(const Options& options, Settings settings, Bootstrap& bootstrap, const Model& model)
        : options_(options), settings_(std::move(settings)), bootstrap_(bootstrap), model_(model), values_(model) {}

    Status prepare() {
        const TrainerLayout whole;
        SLUICE_ASSIGN_OR_RETURN(ownership_,
                                trainer_ownership(model_.catalogue, model_.config, whole, 0, SourceKind::kResident));
        if (trainer()) {
            SLUICE_ASSIGN_OR_RETURN(weights_, cli::TrainerWeights::allocate(model_.catalogue, ownership_));
            weights_->write_version(values_, 1);
        } else {
            SLUICE_ASSIGN_OR_RETURN(copy_source_,
                                    Buffer::allocate(ownership_.segment_bytes.front(), MemoryKind::kHost));
            SLUICE_ASSIGN_OR_RETURN(target_, Buffer::allocate(ownership_.segment_bytes.front(), MemoryKind::kHost));
            std::memset(copy_source_->data(), 1, copy_source_->size());
            std::memset(target_->data(), 2, target_->size());
        }
        SLUICE_ASSIGN_OR_RETURN(
            raw_, RawGet::create(settings_, bootstrap_,
                                 trainer() ? weights_->memory().buffer().bytes() : target_->bytes(), deadline()));
        return ok_status();
    }

    Result<Timings> run(const Series& series) {
        const WorkerLayout layout = *WorkerLayout::parse(series.worker);
        SLUICE_ASSIGN_OR_RETURN(Demand demand, dry_run(model_.catalogue, model_.config, layout, 0));
        std::erase_if(demand.records, [&](const CopyRecord& record) {
            const std::int64_t run = coalesce(record.copy).item;
            return run < series.runs.least || run > series.runs.most;
        });
        Timings timings;
        for (const CopyRecord& record : demand.records) {
            timings.bytes += record.copy.bytes();
        }
        RouteOptions route;
        route.chunk_bytes = settings_.chunk_bytes;
        route.path = series.path;
        SLUICE_ASSIGN_OR_RETURN(auto session, Session::open(settings_, [this](EventLoop& loop) {
                                    return transport::open_ucx_transport(loop, {settings_.ucx, settings_.show_ucx_log});
                                }));
        SLUICE_RETURN_IF_ERROR(trainer() ? serve(*session, route) : pull(*session, route, demand, timings));
        return timings;
    }

    /// A repetition of the get alone.
    Result<double> raw(std::int64_t bytes) { return raw_->run(bytes); }
    Status together() { return bootstrap_.barrier(deadline()); }
    void close() { raw_.reset(); }
    [[nodiscard]] bool trainer() const { return bootstrap_.rank() == 0; }
    [[nodiscard]] transport::LinkInfo link() const { return raw_->link(); }
    [[nodiscard]] std::int64_t bytes() const { return ownership_.segment_bytes.front(); }

private:
    [[nodiscard]] Deadline deadline() const { return Deadline::after(settings_.sync_timeout); }

    Status serve(Session& session, const RouteOptions& route) {
        SharedBuffer& memory = weights_->memory();
        ResidentSource source({{memory.buffer().data(), static_cast<std::int64_t>(memory.buffer().size()),
                                MemoryKind::kHost, memory.handle()}});
        Trainer::Options options;
        options.route = route;
        options.verify_hashes = options_.digest;
        SLUICE_ASSIGN_OR_RETURN(auto server, Trainer::create(session, bootstrap_, model_.catalogue, 0, ok_status(),
                                                             ownership_, &source, options));
        for (int i = 0; i <= options_.repetitions; ++i) {
            SLUICE_RETURN_IF_ERROR(together());
            SLUICE_RETURN_IF_ERROR(server->sync(static_cast<std::uint64_t>(i) + 1));
        }
        server->close();
        return ok_status();
    }

    Status pull(Session& session, const RouteOptions& route, const Demand& demand, Timings& timings) {
        SLUICE_ASSIGN_OR_RETURN(auto parameters, cli::WorkerParameters::allocate(demand));
        parameters.poison();
        Worker::Options options;
        options.route = route;
        options.verify_hashes = options_.digest;
        SLUICE_ASSIGN_OR_RETURN(auto worker, Worker::create(session, bootstrap_, model_.catalogue, 0, 0, ok_status(),
                                                            demand, parameters.store(), {}, options));
        const std::int64_t bytes = std::min(timings.bytes, this->bytes());
        for (int i = 0; i <= options_.repetitions; ++i) {
            SLUICE_ASSIGN_OR_RETURN(const double raw, raw_->run(bytes));
            const Clock::time_point begin = Clock::now();
            std::memcpy(target_->data(), copy_source_->data(), static_cast<std::size_t>(bytes));
            const double copy = std::chrono::duration<double>(Clock::now() - begin).count();
            SLUICE_RETURN_IF_ERROR(together());
            SLUICE_RETURN_IF_ERROR(worker->sync(static_cast<std::uint64_t>(i) + 1));
            if (i > 0) {  // The first touches memory for the first time.
                timings.raw.push_back(raw);
                timings.copy.push_back(copy);
                timings.pull.push_back(worker->stats().seconds);
            }
        }
        worker->close();
        return ok_status();
    }

    const Options& options_;
    Settings settings_;
    Bootstrap& bootstrap_;
    const Model& model_;
    cli::WeightValues values_;
    Ownership ownership_;
    std::optional<cli::TrainerWeights> weights_;
    std::optional<Buffer> copy_source_, target_;
    std::unique_ptr<RawGet> raw_;
};

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
        raw.reset();
    }
    return bootstrap.barrier(deadline);
}

Status run_series(const Options& options, const Settings& settings, Bootstrap& bootstrap, const Model& model,
                  nlohmann::json& out) {
    Bench bench(options, settings, bootstrap, model);
    SLUICE_RETURN_IF_ERROR(bench.prepare());
    out["series"] = nlohmann::json::array();
    const auto print = [&](const std::string& line) {
        if (!bench.trainer()) {
            fmt::print(stderr, "{}\n", line);
        }
    };
    print(fmt::format("{:24}{:>8}{:>10}{:>10}{:>10}{:>9}{:>17}{:>9}", "series", "bytes", "get/s", "memcpy/s", "pull/s",
                      "of get", "spread", "of copy"));
    for (const Series& series : kSeries) {
        if (!options.only.empty() &&
            std::find(options.only.begin(), options.only.end(), series.name) == options.only.end()) {
            continue;
        }
        SLUICE_ASSIGN_OR_RETURN(const Timings t, bench.run(series));
        if (bench.trainer()) {
            continue;
        }
        const auto of_get = ratios(t.raw, t.pull);
        const auto of_copy = ratios(t.copy, t.pull);
        out["series"].push_back({{"name", series.name},
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
        print(fmt::format("{:24}{:>8}{:>10}{:>10}{:>10}{:>9.3f}{:>17}{:>9.3f}", series.name, human_bytes(t.bytes),
                          rate(t.raw), rate(t.copy), rate(t.pull), median(of_get),
                          fmt::format("{:.3f}-{:.3f}", *std::min_element(of_get.begin(), of_get.end()),
                                      *std::max_element(of_get.begin(), of_get.end())),
                          median(of_copy)));
    }
    if (!bench.trainer()) {
        out["transport"] = bench.link().transport;
        out["one_sided"] = bench.link().link_class == transport::LinkClass::kOneSided;
        out["verify"] = options.digest ? "digest" : "off";
        bench.close();
    }
    return bench.together();
}

cli::ExitCode run(const Options& options) {
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
        const auto model = cli::open_model({options.model, options.sets, WeightForm::kCheckpoint});
        status = model.ok() ? run_series(options, *settings, bootstrap, *model, out) : model.status();
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
    app.add_option("--model", options.model, "Catalogue name, file, or Hugging Face directory")->capture_default_str();
    app.add_option("--set", options.sets, "Override a config field; repeatable")->expected(1)->take_all();
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

#include "bench/gpu_pull.h"

#include "bench/gpu_session.h"
#include "bench/known_series.h"
#include "bench/pack_load.h"
#include "bench/raw_get.h"
#include "bench/spread.h"
#include "cli/model_source.h"
#include "cli/trainer_weights.h"
#include "cli/verify_device.h"
#include "cli/weight_values.h"
#include "cli/worker_parameters.h"
#include "planner/dry_run.h"
#include "planner/plan_summary.h"
#include "planner/trainer_ownership.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "runtime/services/log.h"
#include "trainer/resident_source.h"
#include "trainer/trainer.h"
#include "worker/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

namespace sluice::bench {
namespace {

using Clock = EventLoop::Clock;
using Choice = RouteOptions::PathChoice;

struct ModelOf {
    const char* name;
    std::vector<std::string> sets;
};

struct Series {
    const char* name;
    int model;  // in kModels
    const char* worker;
    std::int64_t least_run;  // of the records that it moves
    Choice path;
};

// 32 GB each of a dense and of a mixture-of-experts model (more or fewer of their layers), all of the latter, and two dense ones of which
// 16 GB are long runs: one of the former's shapes, one of those of 70 billion parameters.
const ModelOf kModels[] = {
    {"Llama-3.1-8B", {"num_hidden_layers=70"}},
    {"Qwen3-30B-A3B", {"num_hidden_layers=25"}},
    {"Qwen3-30B-A3B", {}},
    {"Llama-3.1-8B", {"num_hidden_layers=112"}},
    {"Llama-3.1-8B", {"num_hidden_layers=26", "hidden_size=8192", "intermediate_size=28672", "num_attention_heads=64"}},
};
constexpr Series kSeries[] = {
    {"dense tp2, runs of 64M direct", 4, "tp=2", 64 << 20, Choice::kDirect},
    {"dense tp2, runs of 16M direct", 3, "tp=2", 16 << 20, Choice::kDirect},
    {"dense tp2 packed", 0, "tp=2", 1, Choice::kPacked},
    {"dense tp2 mapped", 0, "tp=2", 1, Choice::kMapped},
    {"experts tp2 packed", 1, "tp=2", 1, Choice::kPacked},
    {"experts tp2 mapped", 1, "tp=2", 1, Choice::kMapped},
    {"whole model, as planned", 2, "tp=1", 1, Choice::kAuto},
    {"whole model packed", 2, "tp=1", 1, Choice::kPacked},
    {"whole model direct", 2, "tp=1", 1, Choice::kDirect},
};

struct Timings {
    std::int64_t bytes = 0;
    std::vector<double> get, copy, pull;
    std::vector<double>
        pack_and_get;  // of packed series: an owner packs and a reader gets as many bytes, at the same time
};

/// Both ranks' part in all series of one model.
class Bench {
public:
    Bench(const GpuPullOptions& options, Settings settings, Bootstrap& bootstrap, Device& device)
        : options_(options), settings_(std::move(settings)), bootstrap_(bootstrap), device_(device) {}

    Status run(const ModelOf& which, const std::vector<const Series*>& wanted, nlohmann::json& rows) {
        SLUICE_ASSIGN_OR_RETURN(const cli::Model model,
                                cli::open_model({which.name, which.sets, WeightForm::kCheckpoint}));
        const cli::WeightValues values(model);
        SLUICE_ASSIGN_OR_RETURN(
            const Ownership ownership,
            trainer_ownership(model.catalogue, model.config, TrainerLayout{}, 0, SourceKind::kResident));
        std::optional<cli::TrainerWeights> weights;
        std::vector<std::byte> handle;
        if (trainer()) {
            SLUICE_ASSIGN_OR_RETURN(weights,
                                    cli::TrainerWeights::allocate(model.catalogue, ownership, values, &device_));
            SLUICE_ASSIGN_OR_RETURN(handle, device_.share(weights->bytes().data()));
        }
        SLUICE_ASSIGN_OR_RETURN(const auto handles, bootstrap_.all_gather(handle, deadline()));
        for (const Series* series : wanted) {
            SLUICE_ASSIGN_OR_RETURN(const WorkerLayout layout, WorkerLayout::parse(series->worker));
            SLUICE_ASSIGN_OR_RETURN(Demand demand, dry_run(model.catalogue, model.config, layout, 0));
            std::erase_if(demand.records,
                          [&](const CopyRecord& record) { return coalesce(record.copy).item < series->least_run; });
            Timings timings;
            if (trainer()) {
                SLUICE_RETURN_IF_ERROR(serve(model, ownership, *weights, series->path));
            } else {
                SLUICE_RETURN_IF_ERROR(pull(model, ownership, values, demand, handles.front(), series->path, timings));
                add_row(*series, timings, rows);
            }
            SLUICE_RETURN_IF_ERROR(together());
        }
        return ok_status();
    }

    Status together() { return bootstrap_.barrier(deadline()); }

private:
    [[nodiscard]] bool trainer() const { return bootstrap_.rank() == 0; }
    [[nodiscard]] Deadline deadline() const { return Deadline::after(settings_.sync_timeout); }

    [[nodiscard]] RouteOptions route(Choice path) const {
        RouteOptions route;
        route.chunk_bytes = settings_.chunk_bytes;
        route.path = path;
        return route;
    }

    Status serve(const cli::Model& model, const Ownership& ownership, cli::TrainerWeights& weights, Choice path) {
        SLUICE_ASSIGN_OR_RETURN(auto raw, RawGet::create(settings_, bootstrap_, weights.bytes(), deadline(), &device_));
        SLUICE_ASSIGN_OR_RETURN(auto session, open_gpu_session(settings_, device_, weights.bytes()));
        ResidentSource source({weights.segment()});
        Trainer::Options options;
        options.route = route(path);
        options.verify_hashes = false;
        SLUICE_ASSIGN_OR_RETURN(auto server, Trainer::create(*session, bootstrap_, model.catalogue, 0, ok_status(),
                                                             ownership, &source, options));
        std::unique_ptr<PackLoad> load;
        if (path == Choice::kPacked) {
            SLUICE_ASSIGN_OR_RETURN(load,
                                    PackLoad::create(device_, server->plan().owner_route, {weights.bytes().data()}));
        }
        for (int version = 1; version <= options_.repetitions + 1; ++version) {
            SLUICE_RETURN_IF_ERROR(weights.write_version(static_cast<std::uint64_t>(version)));
            SLUICE_RETURN_IF_ERROR(together());
            SLUICE_RETURN_IF_ERROR(together());
            if (load) {
                SLUICE_RETURN_IF_ERROR(load->run());
                SLUICE_RETURN_IF_ERROR(together());
            }
            SLUICE_RETURN_IF_ERROR(together());
            SLUICE_RETURN_IF_ERROR(server->sync(static_cast<std::uint64_t>(version)));
        }
        server->close();
        return together();  // the reader of the raw get goes first
    }

    Status pull(const cli::Model& model, const Ownership& ownership, const cli::WeightValues& values,
                const Demand& demand, const std::vector<std::byte>& handle, Choice path, Timings& timings) {
        for (const CopyRecord& record : demand.records) {
            timings.bytes += record.copy.bytes();
        }
        SLUICE_ASSIGN_OR_RETURN(auto parameters, cli::WorkerParameters::allocate(demand, &device_));
        cli::ParameterVerifier verifier(model.catalogue, demand, parameters, values, &device_);
        const ParameterStore::Block block = parameters.store().blocks.front();
        const std::span<std::byte> memory(block.data, static_cast<std::size_t>(block.bytes));
        const std::int64_t bytes = std::min({timings.bytes, block.bytes, ownership.segment_bytes.front()});
        SLUICE_ASSIGN_OR_RETURN(const Buffer mapped, device_.map(handle, ownership.segment_bytes.front()));
        SLUICE_ASSIGN_OR_RETURN(auto raw, RawGet::create(settings_, bootstrap_, memory, deadline(), &device_));
        SLUICE_ASSIGN_OR_RETURN(auto session, open_gpu_session(settings_, device_, memory));
        Worker::Options options;
        options.partial = true;  // of some series
        options.route = route(path);
        options.verify_hashes = false;
        SLUICE_ASSIGN_OR_RETURN(auto worker, Worker::create(*session, bootstrap_, model.catalogue, 0, 0, ok_status(),
                                                            demand, parameters.store(), {}, options));
        for (int version = 1; version <= options_.repetitions + 1; ++version) {
            SLUICE_RETURN_IF_ERROR(together());
            SLUICE_ASSIGN_OR_RETURN(const double get, raw->run(bytes));
            const Clock::time_point begin = Clock::now();
            SLUICE_RETURN_IF_ERROR(device_.copy(memory.data(), mapped.data(), static_cast<std::size_t>(bytes), 0));
            const double copy = std::chrono::duration<double>(Clock::now() - begin).count();
            SLUICE_RETURN_IF_ERROR(together());
            double pack_and_get = 0;
            if (path == Choice::kPacked) {
                const Clock::time_point both_begin = Clock::now();
                SLUICE_RETURN_IF_ERROR(raw->run(bytes).status());
                SLUICE_RETURN_IF_ERROR(together());
                pack_and_get = std::chrono::duration<double>(Clock::now() - both_begin).count();
            }
            SLUICE_RETURN_IF_ERROR(parameters.poison());
            SLUICE_RETURN_IF_ERROR(together());
            SLUICE_RETURN_IF_ERROR(worker->sync(static_cast<std::uint64_t>(version)));
            SLUICE_RETURN_IF_ERROR(verifier.verify(worker->plan().route, static_cast<std::uint64_t>(version)).status);
            if (version > 1) {  // the first warms up
                timings.get.push_back(get);
                timings.copy.push_back(copy);
                timings.pull.push_back(worker->stats().seconds);
                if (path == Choice::kPacked) {
                    timings.pack_and_get.push_back(pack_and_get);
                }
            }
        }
        worker->close();
        raw.reset();
        return together();
    }

    static void add_row(const Series& series, const Timings& t, nlohmann::json& rows) {
        const auto rates = [&](const std::vector<double>& seconds) {
            std::vector<double> out;
            for (const double s : seconds) {
                out.push_back(static_cast<double>(t.bytes) / s);
            }
            return out;
        };
        const auto share_of = [&](const std::vector<double>& bound) {
            std::vector<double> out;
            for (std::size_t i = 0; i < bound.size(); ++i) {
                out.push_back(bound[i] / t.pull[i]);
            }
            return out;
        };
        nlohmann::json& row = rows.emplace_back(nlohmann::json{{"name", series.name},
                                                               {"bytes", t.bytes},
                                                               {"pull_bytes_per_second", spread(rates(t.pull))},
                                                               {"raw_get_bytes_per_second", spread(rates(t.get))},
                                                               {"copy_bytes_per_second", spread(rates(t.copy))},
                                                               {"share_of_raw_get", spread(share_of(t.get))},
                                                               {"share_of_copy", spread(share_of(t.copy))},
                                                               {"seconds", spread(t.pull)}});
        if (!t.pack_and_get.empty()) {
            row["pack_and_get_bytes_per_second"] = spread(rates(t.pack_and_get));
            row["share_of_pack_and_get"] = spread(share_of(t.pack_and_get));
        }
    }

    GpuPullOptions options_;
    Settings settings_;
    Bootstrap& bootstrap_;
    Device& device_;
};

Status run_all(const GpuPullOptions& options, const Settings& settings, Bootstrap& bootstrap, nlohmann::json& rows) {
    SLUICE_ASSIGN_OR_RETURN(const auto device, open_cuda_device(options.device, settings.copy_threads));
    Bench bench(options, settings, bootstrap, *device);
    for (int model = 0; model < static_cast<int>(std::size(kModels)); ++model) {
        std::vector<const Series*> wanted;
        for (const Series& series : kSeries) {
            const bool asked = options.only.empty() ||
                               std::find(options.only.begin(), options.only.end(), series.name) != options.only.end();
            if (series.model == model && asked) {
                wanted.push_back(&series);
            }
        }
        if (!wanted.empty()) {
            SLUICE_RETURN_IF_ERROR(bench.run(kModels[model], wanted, rows));
        }
    }
    return ok_status();
}

}  // namespace

Status bench_gpu_pull(const GpuPullOptions& options, nlohmann::json& rows) {
    SLUICE_RETURN_IF_ERROR(check_series(options.only, kSeries));
    SLUICE_ASSIGN_OR_RETURN(Settings settings, Settings::from_environment());
    settings.adapt_to_device();
    log::set_level(LogLevel::kWarning);
    SLUICE_ASSIGN_OR_RETURN(const auto mpi, MpiBootstrap::create());
    if (mpi->size() != 2) {
        return invalid_argument(
            fmt::format("two ranks are measured, but {} were started; use mpirun -n 2", mpi->size()));
    }
    SLUICE_RETURN_IF_ERROR(run_all(options, settings, *mpi, rows));
    mpi->finalize();
    return ok_status();
}

void print_gpu_pull_rows(const nlohmann::json& rows) {
    fmt::print(stderr, "{:32}{:>10}{:>11}{:>11}{:>11}{:>8}{:>8}{:>11}{:>15}\n", "series", "bytes", "pull/s", "get/s",
               "copy/s", "of get", "of copy", "of p+get", "spread");
    const auto tera = [](const nlohmann::json& rate) { return rate["median"].get<double>() * 1e-12; };
    for (const nlohmann::json& row : rows) {
        const nlohmann::json& share = row["share_of_raw_get"];
        fmt::print(stderr, "{:32}{:>10}{:>8.3f} TB{:>8.3f} TB{:>8.3f} TB{:>8.3f}{:>8.3f}{:>11}{:>15}\n",
                   row["name"].get<std::string>(), human_bytes(row["bytes"].get<std::int64_t>()),
                   tera(row["pull_bytes_per_second"]), tera(row["raw_get_bytes_per_second"]),
                   tera(row["copy_bytes_per_second"]), share["median"].get<double>(),
                   row["share_of_copy"]["median"].get<double>(),
                   row.contains("share_of_pack_and_get")
                       ? fmt::format("{:.3f}", row["share_of_pack_and_get"]["median"].get<double>())
                       : std::string(),
                   fmt::format("{:.3f}-{:.3f}", share["min"].get<double>(), share["max"].get<double>()));
    }
}

}  // namespace sluice::bench

// 256 MiB in 64 pieces of 4 MiB and in 65,536 pieces of 4 KiB, strided at the trainer: what small pieces cost, by the path that the planner picks and by
// forced direct, over CMA and over TCP.
//   mpirun --bind-to none -n 2 bench_small [--json FILE]
#include "bench/pull_pair.h"
#include "bench/spread.h"
#include "cli/exit_code.h"
#include "cli/json_output.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "runtime/services/log.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <array>

namespace sluice::bench {
namespace {

using Choice = RouteOptions::PathChoice;

constexpr std::int64_t kAll = 256 << 20;
constexpr std::int64_t kElement = 2;

/// Every other piece of a tensor of twice as many bytes.
struct Pieces {
    const char* name;
    std::int64_t bytes;  ///< Of a piece.
    TensorId tensor;

    [[nodiscard]] std::int64_t count() const { return kAll / bytes; }
};
constexpr std::array<Pieces, 2> kPieces{{{"64 x 4 MiB", 4 << 20, 0}, {"65536 x 4 KiB", 4 << 10, 1}}};

Result<cli::Model> model() {
    std::vector<CatalogueTensor> tensors;
    for (const Pieces& pieces : kPieces) {
        tensors.push_back({fmt::format("model.layers.{}.weight", pieces.tensor),
                           DType::kBF16,
                           {pieces.count(), 2 * pieces.bytes / kElement},
                           0,
                           {}});
    }
    cli::Model made;
    made.name = "pieces";
    SLUICE_ASSIGN_OR_RETURN(made.catalogue, Catalogue::create(std::move(tensors), static_cast<int>(kPieces.size())));
    return made;
}

Ownership ownership(const Catalogue& catalogue) {
    Ownership out;
    std::int64_t offset = 0;
    for (TensorId id = 0; id < static_cast<TensorId>(catalogue.size()); ++id) {
        const CatalogueTensor& tensor = catalogue[id];
        out.regions.push_back({id, {0, 0}, tensor.shape, 0, offset, {tensor.shape[1] * kElement, kElement}});
        offset += tensor.bytes();
    }
    out.segment_bytes = {offset};
    return out;
}

Demand demand(const Pieces& pieces) {
    Demand out;
    const std::int64_t columns = pieces.bytes / kElement;
    out.parameters.push_back({"pieces", DType::kBF16, {pieces.count(), columns}});
    CopyRecord record;
    record.tensor = pieces.tensor;
    record.copy.item = kElement;
    record.copy.sizes = {pieces.count(), columns};
    record.copy.src_strides = {2 * pieces.bytes, kElement};
    record.copy.dst_strides = {pieces.bytes, kElement};
    out.records.push_back(record);
    return out;
}

Settings with_transports(Settings settings, const char* transports) {
    settings.mapped = false;
    if (transports != nullptr) {
        std::erase_if(settings.ucx, [](const UcxSetting& setting) { return setting.key == "TLS"; });
        settings.ucx.push_back({"TLS", transports});
    }
    return settings;
}

std::string names(const std::set<Path>& paths) {
    std::string out;
    for (const Path path : paths) {
        out += out.empty() ? "" : "+";
        out += path == Path::kDirect ? "direct" : path == Path::kPacked ? "packed" : "mapped";
    }
    return out;
}

Status run_link(const char* link, Settings settings, int repetitions, Bootstrap& bootstrap, const cli::Model& made,
                nlohmann::json& out) {
    PullPair pair({repetitions, false}, std::move(settings), bootstrap, made, ownership(made.catalogue));
    SLUICE_RETURN_IF_ERROR(pair.prepare());
    for (const Choice choice : {Choice::kAuto, Choice::kDirect}) {
        std::array<PullTimings, kPieces.size()> timings;
        for (std::size_t i = 0; i < kPieces.size(); ++i) {
            SLUICE_ASSIGN_OR_RETURN(timings[i], pair.run(demand(kPieces[i]), choice));
        }
        if (pair.trainer()) {
            continue;
        }
        const auto& [large, small] = timings;
        const double ratio = median(small.pull) / median(large.pull);
        // Each piece is a get of its own then; the CPU time has the copying of the bytes in it.
        const bool one_get_each = small.paths == std::set<Path>{Path::kDirect};
        const double us = median(small.cpu) / static_cast<double>(kPieces[1].count()) * 1e6;
        const double carrying_us = median(small.raw_cpu) / static_cast<double>(kPieces[1].count()) * 1e6;
        out.push_back({{"link", link},
                       {"transport", pair.link().transport},
                       {"one_sided", pair.link().link_class == transport::LinkClass::kOneSided},
                       {"choice", choice == Choice::kAuto ? "auto" : "direct"},
                       {"paths", {names(large.paths), names(small.paths)}},
                       {"large_s", spread(large.pull)},
                       {"small_s", spread(small.pull)},
                       {"raw_get_s", spread(small.raw)},
                       {"time_ratio", ratio},
                       {"cpu_us_per_get", one_get_each ? nlohmann::json(us) : nlohmann::json()},
                       {"raw_get_cpu_us_per_piece", carrying_us}});
        fmt::print(stderr, "{:6}{:18}{:8}{:>17}{:>12.1f}{:>12.1f}{:>12.1f}{:>9.2f}{:>14}\n", link,
                   pair.link().transport, choice == Choice::kAuto ? "auto" : "direct",
                   names(large.paths) + ", " + names(small.paths), median(small.raw) * 1e3, median(large.pull) * 1e3,
                   median(small.pull) * 1e3, ratio, one_get_each ? fmt::format("{:.2f}", us) : "-");
    }
    if (!pair.trainer()) {
        pair.close();
    }
    return pair.together();
}

Status run_all(int repetitions, Bootstrap& bootstrap, nlohmann::json& out) {
    if (bootstrap.size() != 2) {
        return invalid_argument(
            fmt::format("two ranks are measured, but {} were started; use mpirun -n 2", bootstrap.size()));
    }
    SLUICE_ASSIGN_OR_RETURN(const Settings settings, Settings::from_environment());
    log::set_level(LogLevel::kWarning);
    SLUICE_ASSIGN_OR_RETURN(const cli::Model made, model());
    if (bootstrap.rank() == 1) {
        fmt::print(stderr, "{:6}{:18}{:8}{:>17}{:>12}{:>12}{:>12}{:>9}{:>14}\n", "link", "transport", "choice", "paths",
                   "raw get ms", kPieces[0].name, kPieces[1].name, "ratio", "CPU us/get");
    }
    out = nlohmann::json::array();
    SLUICE_RETURN_IF_ERROR(run_link("cma", with_transports(settings, nullptr), repetitions, bootstrap, made, out));
    return run_link("tcp", with_transports(settings, "tcp,self"), repetitions, bootstrap, made, out);
}

cli::ExitCode run(int repetitions, const std::string& json) {
    const auto mpi = MpiBootstrap::create();
    if (!mpi.ok()) {
        return cli::report(mpi.status());
    }
    nlohmann::json out = {{"schema", 1}, {"bench", "small"}, {"repetitions", repetitions}, {"bytes", kAll}};
    Status status = run_all(repetitions, **mpi, out["rows"]);
    if (!status.ok()) {
        return cli::report(status);
    }
    if ((*mpi)->rank() == 1) {
        status = cli::Output(json).write_json(out);
    }
    (*mpi)->finalize();
    return status.ok() ? cli::kDone : cli::report(status);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
    int repetitions = 5;
    std::string json;
    CLI::App app(
        "256 MiB in large and in small pieces, by the path that the planner picks and by gets; under mpirun -n 2");
    app.add_option("--repetitions", repetitions, "Of each row; one more warms up")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--json", json, "Write the results as JSON to FILE")->type_name("FILE");
    CLI11_PARSE(app, argc, argv);
    return sluice::bench::run(repetitions, json);
}

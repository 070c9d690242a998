// 256 MiB in pieces of 4 MiB down to 4 KiB, strided at the trainer: what small pieces cost over CMA and over TCP, by the path that the planner
// picks, by one get for each and packed; where gets and packing change places is what RouteOptions::direct_run is taken from.
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
constexpr std::array<Pieces, 5> kPieces{{{"4 MiB", 4 << 20, 0},
                                         {"256 KiB", 256 << 10, 1},
                                         {"64 KiB", 64 << 10, 2},
                                         {"16 KiB", 16 << 10, 3},
                                         {"4 KiB", 4 << 10, 4}}};

struct Way {
    const char* name;
    Choice choice;
};
constexpr std::array<Way, 3> kWays{{{"auto", Choice::kAuto}, {"direct", Choice::kDirect}, {"packed", Choice::kPacked}}};

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

// `of_large`: how long the same way takes for the largest pieces.
nlohmann::json figures(const PullTimings& timings, const Pieces& pieces, double of_large) {
    // Each piece is a get of its own then; the CPU time has the copying of the bytes in it.
    const bool one_get_each = timings.paths == std::set<Path>{Path::kDirect};
    const double us = median(timings.cpu) / static_cast<double>(pieces.count()) * 1e6;
    return {{"paths", names(timings.paths)},
            {"seconds", spread(timings.pull)},
            {"of_largest_pieces", median(timings.pull) / of_large},
            {"cpu_us_per_get", one_get_each ? nlohmann::json(us) : nlohmann::json()}};
}

void print_row(const nlohmann::json& row) {
    const auto ms = [](const nlohmann::json& times) { return times["median"].get<double>() * 1e3; };
    fmt::print(stderr, "{:5}{:18}{:>8}{:>9.1f}", row["link"].get<std::string>(), row["transport"].get<std::string>(),
               row["pieces"].get<std::string>(), ms(row["raw_get_s"]));
    for (const Way& way : kWays) {
        const nlohmann::json& cell = row[way.name];
        fmt::print(stderr, "{:>9.1f}{:>7.2f}", ms(cell["seconds"]), cell["of_largest_pieces"].get<double>());
    }
    const nlohmann::json& us = row["direct"]["cpu_us_per_get"];
    fmt::print(stderr, "{:>8}{:>10.2f}\n", row["auto"]["paths"].get<std::string>(), us.get<double>());
}

Status run_link(const char* link, Settings settings, int repetitions, Bootstrap& bootstrap, const cli::Model& made,
                nlohmann::json& out) {
    PullPair pair({repetitions, false}, std::move(settings), bootstrap, made, ownership(made.catalogue));
    SLUICE_RETURN_IF_ERROR(pair.prepare());
    std::array<double, kWays.size()> of_large{};
    for (const Pieces& pieces : kPieces) {
        std::array<PullTimings, kWays.size()> timings;
        for (std::size_t i = 0; i < kWays.size(); ++i) {
            SLUICE_ASSIGN_OR_RETURN(timings[i], pair.run(demand(pieces), kWays[i].choice));
        }
        if (pair.trainer()) {
            continue;
        }
        const double carrying_us = median(timings.front().raw_cpu) / static_cast<double>(pieces.count()) * 1e6;
        nlohmann::json& row =
            out.emplace_back(nlohmann::json{{"link", link},
                                            {"transport", pair.link().transport},
                                            {"one_sided", pair.link().link_class == transport::LinkClass::kOneSided},
                                            {"pieces", pieces.name},
                                            {"piece_bytes", pieces.bytes},
                                            {"raw_get_s", spread(timings.front().raw)},
                                            {"raw_get_cpu_us_per_piece", carrying_us}});
        for (std::size_t i = 0; i < kWays.size(); ++i) {
            if (of_large[i] == 0) {
                of_large[i] = median(timings[i].pull);
            }
            row[kWays[i].name] = figures(timings[i], pieces, of_large[i]);
        }
        print_row(row);
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
        fmt::print(stderr, "{:5}{:18}{:>8}{:>9}{:>9}{:>7}{:>9}{:>7}{:>9}{:>7}{:>8}{:>10}\n", "link", "transport",
                   "pieces", "raw ms", "auto ms", "ratio", "direct", "ratio", "packed", "ratio", "auto is", "us/get");
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
        "256 MiB in large and in small pieces, by the path that the planner picks, by gets and packed; under mpirun -n "
        "2");
    app.add_option("--repetitions", repetitions, "Of each row; one more warms up")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--json", json, "Write the results as JSON to FILE")->type_name("FILE");
    CLI11_PARSE(app, argc, argv);
    return sluice::bench::run(repetitions, json);
}

// What the GPU's part of Sluice reaches on this machine, beside what the device itself can do, in one run.
//   bench_gpu copy|quantise|checksum [--json FILE]
//   mpirun -n 2 --bind-to none bench_gpu pull [--json FILE]
//   mpirun -n 4 --bind-to none bench_gpu pairs [--json FILE]
//   mpirun -n N --bind-to none bench_gpu links|collectives|broadcast [--json FILE]     (of several GPUs: bench/multi_gpu.py runs them)
#include "bench/gpu_broadcast.h"
#include "bench/gpu_collectives.h"
#include "bench/gpu_kernels.h"
#include "bench/gpu_links.h"
#include "bench/gpu_pairs.h"
#include "bench/gpu_pull.h"
#include "cli/exit_code.h"
#include "cli/json_output.h"
#include "runtime/base/units.h"
#include "runtime/cuda/cuda_device.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <functional>

namespace sluice::bench {
namespace {

struct Options {
    GpuKernelOptions kernels;
    GpuPullOptions pull;
    GpuPairsOptions pairs;
    GpuLinksOptions links;
    std::string link_bytes;
    GpuCollectivesOptions collectives;
    GpuBroadcastOptions broadcast;
    int device = 0;
    std::string json;
};

using Bench = std::function<Status(const Options& options, nlohmann::json& rows)>;

cli::ExitCode run(const std::string& name, const Bench& bench, const Options& options) {
    const auto device = open_cuda_device(options.device, 1);
    if (!device.ok()) {
        return cli::report(device.status());
    }
    nlohmann::json out = {{"schema", 1},
                          {"bench", "gpu " + name},
                          {"device", (*device)->name()},
                          {"repetitions", options.kernels.repetitions},
                          {"rows", nlohmann::json::array()}};
    if (const Status status = bench(options, out["rows"]); !status.ok()) {
        return cli::report(status);
    }
    print_gpu_rows(out["rows"]);
    return cli::report(cli::Output(options.json).write_json(out));
}

// Of two processes; the second has the results.
cli::ExitCode run_pull(const Options& options) {
    GpuPullOptions pull = options.pull;
    pull.device = options.device;
    nlohmann::json out = {{"schema", 1}, {"bench", "gpu pull"}, {"repetitions", pull.repetitions}};
    out["rows"] = nlohmann::json::array();
    if (const Status status = bench_gpu_pull(pull, out["rows"]); !status.ok() || out["rows"].empty()) {
        return cli::report(status);
    }
    print_gpu_pull_rows(out["rows"]);
    return cli::report(cli::Output(options.json).write_json(out));
}

// Of four processes; the third has the results.
cli::ExitCode run_pairs(const Options& options) {
    GpuPairsOptions pairs = options.pairs;
    pairs.device = options.device;
    nlohmann::json row;
    if (const Status status = bench_gpu_pairs(pairs, row); !status.ok() || row.empty()) {
        return cli::report(status);
    }
    print_gpu_pairs_row(row);
    return cli::report(
        cli::Output(options.json)
            .write_json({{"schema", 1}, {"bench", "gpu pairs"}, {"repetitions", pairs.repetitions}, {"rows", {row}}}));
}

// Of any number of processes; the first has the results.
cli::ExitCode write_rows(nlohmann::json out, const Status& status, const Options& options, const nlohmann::json& rows,
                         void (*print)(const nlohmann::json&)) {
    if (!status.ok() || rows.empty()) {
        return cli::report(status);
    }
    print(rows);
    out["schema"] = 1;
    out["rows"] = rows;
    return cli::report(cli::Output(options.json).write_json(out));
}

cli::ExitCode run_links(const Options& options) {
    GpuLinksOptions links = options.links;
    if (!options.link_bytes.empty()) {
        const auto bytes = cli::parse_size("--bytes", options.link_bytes, 1);
        if (!bytes.ok()) {
            return cli::report(bytes.status());
        }
        links.bytes = *bytes;
    }
    nlohmann::json rows = nlohmann::json::array();
    const Status status = bench_gpu_links(links, rows);
    return write_rows({{"bench", "gpu links"}, {"repetitions", links.repetitions}}, status, options, rows,
                      print_gpu_links_rows);
}

cli::ExitCode run_collectives(const Options& options) {
    nlohmann::json rows = nlohmann::json::array();
    const Status status = bench_gpu_collectives(options.collectives, rows);
    return write_rows({{"bench", "gpu collectives"}, {"repetitions", options.collectives.repetitions}}, status, options,
                      rows, print_gpu_collectives_rows);
}

cli::ExitCode run_broadcast(const Options& options) {
    nlohmann::json rows = nlohmann::json::array();
    const Status status = bench_gpu_broadcast(options.broadcast, rows);
    return write_rows({{"bench", "gpu broadcast"}, {"repetitions", options.broadcast.repetitions}}, status, options,
                      rows, print_gpu_broadcast_rows);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
    using namespace sluice::bench;
    Options options;
    std::string name;
    Bench chosen;
    CLI::App app("What the GPU's part of Sluice reaches, beside what the device can do");
    app.require_subcommand(1);
    const auto add = [&](const char* command, const char* help, Bench bench) {
        CLI::App* sub = app.add_subcommand(command, help);
        sub->add_option("--repetitions", options.kernels.repetitions, "Of each row; three more warm up")
            ->check(CLI::Range(1, 1000))
            ->capture_default_str();
        sub->add_option("--device", options.device, "Number of the CUDA device")->capture_default_str();
        sub->add_option("--json", options.json, "Write the results as JSON to FILE")->type_name("FILE");
        sub->callback([&, command, bench = std::move(bench)] {
            name = command;
            chosen = bench;
        });
    };
    add("copy", "Strided copies by length of run, and conversions",
        [](const Options& o, nlohmann::json& rows) { return bench_gpu_copy(o.kernels, rows); });
    add("quantise", "Block quantisation to f8e4m3",
        [](const Options& o, nlohmann::json& rows) { return bench_gpu_quantise(o.kernels, rows); });
    add("checksum", "Chunk checksums, alone and with a copy",
        [](const Options& o, nlohmann::json& rows) { return bench_gpu_checksum(o.kernels, rows); });
    CLI::App* pull = app.add_subcommand("pull", "One worker process pulls from one trainer process (mpirun -n 2)");
    pull->add_option("--repetitions", options.pull.repetitions, "Of each series; one more warms up")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    pull->add_option("--series", options.pull.only, "Only this series; repeatable")->expected(1)->take_all();
    pull->add_option("--device", options.device, "Number of the CUDA device")->capture_default_str();
    pull->add_option("--json", options.json, "Write the results as JSON to FILE")->type_name("FILE");
    CLI::App* pairs = app.add_subcommand("pairs", "Two worker processes pull from two trainer processes (mpirun -n 4)");
    pairs->add_option("--repetitions", options.pairs.repetitions, "One more warms up")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    pairs->add_option("--device", options.device, "Number of the CUDA device")->capture_default_str();
    pairs->add_option("--json", options.json, "Write the results as JSON to FILE")->type_name("FILE");
    const auto add_of_ranks = [&](const char* command, const char* help, int& repetitions) {
        CLI::App* sub = app.add_subcommand(command, help);
        sub->add_option("--repetitions", repetitions, "One more warms up")
            ->check(CLI::Range(1, 1000))
            ->capture_default_str();
        sub->add_option("--json", options.json, "Write the results as JSON to FILE")->type_name("FILE");
        return sub;
    };
    CLI::App* links = add_of_ranks("links", "What every link between GPUs carries (mpirun -n N, a rank for each GPU)",
                                   options.links.repetitions);
    links->add_option("--bytes", options.link_bytes, "Read by a reader (default 16G)")->type_name("SIZE");
    links
        ->add_option("--at-once", options.links.at_once,
                     "Also, at the same time, T ranks read by the W ranks after them (T:W), or everybody by all others "
                     "(all); repeatable")
        ->type_name("T:W")
        ->expected(1)
        ->take_all();
    CLI::App* collectives =
        add_of_ranks("collectives", "NCCL's broadcast and all-gather (mpirun -n N, a rank for each GPU)",
                     options.collectives.repetitions);
    CLI::App* broadcast =
        add_of_ranks("broadcast", "Weights gathered to trainer 0 and broadcast to all workers by NCCL (mpirun -n N)",
                     options.broadcast.repetitions);
    options.broadcast.layout.add_to(*broadcast);
    CLI11_PARSE(app, argc, argv);
    if (links->parsed()) {
        return run_links(options);
    }
    if (collectives->parsed()) {
        return run_collectives(options);
    }
    if (broadcast->parsed()) {
        return run_broadcast(options);
    }
    if (pull->parsed()) {
        return run_pull(options);
    }
    if (pairs->parsed()) {
        return run_pairs(options);
    }
    return run(name, chosen, options);
}

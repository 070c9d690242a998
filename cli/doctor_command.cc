#include "cli/commands.h"
#include "cli/doctor/report.h"
#include "cli/json_output.h"
#include "runtime/base/settings.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "runtime/services/log.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>

namespace sluice::cli {
namespace {

// Of one link that is tried out, CUDA's and UCX's start included.
constexpr std::chrono::seconds kProbeLimit{30};

Result<Examination> examine_node() {
    Examination out;
    SLUICE_ASSIGN_OR_RETURN(const Settings settings, Settings::from_environment());
    log::set_level(settings.log_level);
    out.node = read_node_facts("/");
    out.ucx = transport::loaded_ucx();
    out.ucx_status = transport::check_ucx(out.ucx);
    out.mpi = MpiBootstrap::library_version();
    if (out.ucx_status.ok()) {
        // Before this process starts UCX or CUDA itself: these fork.
        for (const MemoryKind memory : {MemoryKind::kHost, MemoryKind::kCuda}) {
            if (memory == MemoryKind::kCuda && out.node.gpus.empty()) {
                continue;
            }
            for (const bool network_only : {false, true}) {
                out.links.push_back({network_only, memory, probe_link({settings, network_only, memory}, kProbeLimit)});
            }
        }
        auto info = transport::inspect_transports({settings.ucx, settings.show_ucx_log});
        out.ucx_status = info.status();
        if (info.ok()) {
            out.transports = std::move(info->transports);
            out.memory_kinds = std::move(info->memory_kinds);
        }
    }
    out.cuda = probe_cuda();
    return out;
}

ExitCode run_doctor(const std::string& json_target) {
    const Result<Examination> examination = examine_node();
    if (!examination.ok()) {
        return report(examination.status());
    }
    const std::vector<Finding> findings = examine(*examination);
    const Output output(json_target);
    fmt::print(output.people(), "{}", doctor_page(findings));
    if (const Status written = output.write_json(doctor_json(*examination, findings)); !written.ok()) {
        return report(written);
    }
    return fit(*examination) ? kDone : kUnfit;
}

}  // namespace

void add_doctor_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("doctor",
                                           "Try out what a pull would get on this node, and say what stands in its "
                                           "way; exit code 1 when one would be emulated");
    auto json = std::make_shared<std::string>();
    command
        ->add_option("--json", *json,
                     "Write the findings as JSON to FILE; - is stdout, and the page then goes to stderr")
        ->type_name("FILE");
    command->callback([&run, json] { run = [json] { return run_doctor(*json); }; });
}

}  // namespace sluice::cli

#include "cli/commands.h"
#include "runtime/base/settings.h"
#include "runtime/cuda/cuda_probe.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "transport/transport_info.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sluice::cli {

namespace {

Status run_info() {
    const transport::UcxLibrary ucx = transport::loaded_ucx();
    fmt::print("UCX   {} ({})\n", ucx.version(), ucx.path);
    SLUICE_RETURN_IF_ERROR(transport::check_ucx(ucx));
    SLUICE_ASSIGN_OR_RETURN(const Settings settings, Settings::from_environment());
    SLUICE_ASSIGN_OR_RETURN(const transport::TransportInfo info,
                            transport::inspect_transports({settings.ucx, settings.show_ucx_log}));
    fmt::print("      transports {}\n", fmt::join(info.transports, " "));
    fmt::print("      memory     {}\n", fmt::join(info.memory_kinds, " "));
    fmt::print("MPI   {}\n", MpiBootstrap::library_version());
    fmt::print("CUDA  {}\n", describe(probe_cuda()));
    return ok_status();
}

}  // namespace

void add_info_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand(
        "info", "Show the UCX, MPI and CUDA that this program has found; exit code 2 when UCX is too old");
    command->callback([&run] { run = [] { return report(run_info()); }; });
}

}  // namespace sluice::cli

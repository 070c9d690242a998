#include "bench/gpu_broadcast.h"

#include "bench/broadcast_rank.h"
#include "bench/spread.h"
#include "cli/model_source.h"
#include "cli/nccl_ranks.h"
#include "planner/plan_summary.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_probe.h"
#include "runtime/exchange/agreement.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "runtime/services/log.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

Status run_ranks(const GpuBroadcastOptions& options, MpiBootstrap& mpi, nlohmann::json& rows) {
    const auto deadline = [] { return Deadline::after(std::chrono::minutes(2)); };
    SLUICE_ASSIGN_OR_RETURN(const TrainerLayout trainer, options.layout.trainer_layout());
    SLUICE_ASSIGN_OR_RETURN(const std::vector<WorkerLayout> pools, options.layout.worker_layouts());
    int ranks = trainer.world_size();
    for (const WorkerLayout& pool : pools) {
        ranks += pool.world_size();
    }
    const int devices = static_cast<int>(probe_cuda().devices.size());
    if (mpi.size() != ranks || ranks > devices) {
        return invalid_argument(fmt::format(
            "the layouts need {} ranks, each with a GPU of its own: {} ranks were started, and there are {} GPUs",
            ranks, mpi.size(), devices));
    }
    SLUICE_ASSIGN_OR_RETURN(const cli::Model model, cli::open_model(options.layout.model_choice()));
    SLUICE_ASSIGN_OR_RETURN(const auto device, open_cuda_device(mpi.rank(), 1));
    BroadcastRank way(model, *device, mpi.rank());
    SLUICE_RETURN_IF_ERROR(agree_on_status(mpi, way.open(trainer, pools), deadline()));
    const int trainers = trainer.world_size();
    std::unique_ptr<NcclGroup> gather;
    if (trainers > 1) {
        SLUICE_ASSIGN_OR_RETURN(gather,
                                cli::open_nccl_ranks(mpi, way.place_in_gather(), trainers, mpi.rank(), deadline()));
    }
    SLUICE_ASSIGN_OR_RETURN(auto broadcast, cli::open_nccl_ranks(mpi, way.place_in_broadcast(), ranks - trainers + 1,
                                                                 mpi.rank(), deadline()));
    way.connect(std::move(gather), std::move(broadcast));
    std::vector<double> seconds;
    for (int i = 0; i <= options.repetitions; ++i) {
        const auto version = static_cast<std::uint64_t>(i) + 1;
        SLUICE_RETURN_IF_ERROR(way.prepare(version));
        SLUICE_RETURN_IF_ERROR(mpi.barrier(deadline()));
        const Clock::time_point begin = Clock::now();
        SLUICE_RETURN_IF_ERROR(way.run(deadline()));
        SLUICE_RETURN_IF_ERROR(mpi.barrier(deadline()));
        if (i > 0) {  // The first opens channels.
            seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
        }
        SLUICE_RETURN_IF_ERROR(agree_on_status(mpi, way.verify(version), deadline()));
    }
    if (mpi.rank() == 0) {
        rows.push_back({{"name", "gathered to trainer 0, broadcast by NCCL"},
                        {"bytes", model.catalogue.bytes()},
                        {"gathered_bytes", way.gathered_bytes()},
                        {"seconds", spread(seconds)}});
    }
    return ok_status();
}

}  // namespace

Status bench_gpu_broadcast(const GpuBroadcastOptions& options, nlohmann::json& rows) {
    log::set_level(LogLevel::kWarning);
    SLUICE_ASSIGN_OR_RETURN(const auto mpi, MpiBootstrap::create());
    SLUICE_RETURN_IF_ERROR(run_ranks(options, *mpi, rows));
    mpi->finalize();
    return ok_status();
}

void print_gpu_broadcast_rows(const nlohmann::json& rows) {
    for (const nlohmann::json& row : rows) {
        const nlohmann::json& seconds = row["seconds"];
        fmt::print(stderr, "{}: {}, {} gathered, {:.1f} ms ({:.1f}-{:.1f})\n", row["name"].get<std::string>(),
                   human_bytes(row["bytes"].get<std::int64_t>()),
                   human_bytes(row["gathered_bytes"].get<std::int64_t>()), seconds["median"].get<double>() * 1e3,
                   seconds["min"].get<double>() * 1e3, seconds["max"].get<double>() * 1e3);
    }
}

}  // namespace sluice::bench

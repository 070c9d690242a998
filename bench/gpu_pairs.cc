#include "bench/gpu_pairs.h"

#include "bench/gpu_session.h"
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

#include <chrono>
#include <cstring>
#include <vector>

namespace sluice::bench {
namespace {

using Clock = EventLoop::Clock;

constexpr int kTrainers = 2;
constexpr int kWorkers = 2;

/// One rank's part; trainers first.
class Pairs {
public:
    Pairs(const GpuPairsOptions& options, Settings settings, Bootstrap& bootstrap, Device& device,
          const cli::Model& model)
        : options_(options),
          settings_(std::move(settings)),
          bootstrap_(bootstrap),
          device_(device),
          model_(model),
          values_(model) {
        route_.chunk_bytes = settings_.chunk_bytes;
    }

    Status run(nlohmann::json& row) {
        SLUICE_ASSIGN_OR_RETURN(const TrainerLayout trainers, TrainerLayout::parse("tp=2,ep=2"));
        SLUICE_ASSIGN_OR_RETURN(const WorkerLayout workers, WorkerLayout::parse("tp=2,ep=on"));
        return bootstrap_.rank() < kTrainers ? serve(trainers) : pull(workers, row);
    }

private:
    [[nodiscard]] Deadline deadline() const { return Deadline::after(settings_.sync_timeout); }
    Status together() { return bootstrap_.barrier(deadline()); }
    [[nodiscard]] int versions() const { return options_.repetitions + 1; }

    // How the other side maps this rank's memory: CUDA's handle, and how much of it there is.
    Result<std::vector<std::vector<std::byte>>> exchange(std::span<const std::byte> memory) {
        std::vector<std::byte> card;
        if (!memory.empty()) {
            SLUICE_ASSIGN_OR_RETURN(card, device_.share(memory.data()));
            const auto bytes = static_cast<std::int64_t>(memory.size());
            card.resize(card.size() + sizeof bytes);
            std::memcpy(card.data() + card.size() - sizeof bytes, &bytes, sizeof bytes);
        }
        return bootstrap_.all_gather(card, deadline());
    }

    Status serve(const TrainerLayout& layout) {
        const int rank = bootstrap_.rank();
        SLUICE_ASSIGN_OR_RETURN(const Ownership ownership, trainer_ownership(model_.catalogue, model_.config, layout,
                                                                             rank, SourceKind::kResident));
        SLUICE_ASSIGN_OR_RETURN(auto weights,
                                cli::TrainerWeights::allocate(model_.catalogue, ownership, values_, &device_));
        SLUICE_RETURN_IF_ERROR(exchange(weights.bytes()).status());
        SLUICE_ASSIGN_OR_RETURN(auto session, open_gpu_session(settings_, device_, weights.bytes()));
        ResidentSource source({weights.segment()});
        Trainer::Options options;
        options.route = route_;
        options.verify_hashes = false;
        SLUICE_ASSIGN_OR_RETURN(auto trainer, Trainer::create(*session, bootstrap_, model_.catalogue, rank, ok_status(),
                                                              ownership, &source, options));
        for (int version = 1; version <= versions(); ++version) {
            SLUICE_RETURN_IF_ERROR(weights.write_version(static_cast<std::uint64_t>(version)));
            for (int i = 0; i < 3; ++i) {
                SLUICE_RETURN_IF_ERROR(together());
            }
            SLUICE_RETURN_IF_ERROR(trainer->sync(static_cast<std::uint64_t>(version)));
        }
        SLUICE_RETURN_IF_ERROR(together());
        trainer->close();
        return ok_status();
    }

    Status pull(const WorkerLayout& layout, nlohmann::json& row) {
        const int rank = bootstrap_.rank() - kTrainers;
        SLUICE_ASSIGN_OR_RETURN(const auto cards, exchange({}));
        SLUICE_ASSIGN_OR_RETURN(const Demand demand, dry_run(model_.catalogue, model_.config, layout, rank));
        SLUICE_ASSIGN_OR_RETURN(auto parameters, cli::WorkerParameters::allocate(demand, &device_));
        cli::ParameterVerifier verifier(model_.catalogue, demand, parameters, values_, &device_);
        const ParameterStore::Block block = parameters.store().blocks.front();
        SLUICE_ASSIGN_OR_RETURN(
            auto session, open_gpu_session(settings_, device_, {block.data, static_cast<std::size_t>(block.bytes)}));
        Worker::Options options;
        options.route = route_;
        options.verify_hashes = false;
        SLUICE_ASSIGN_OR_RETURN(auto worker, Worker::create(*session, bootstrap_, model_.catalogue, rank, rank,
                                                            ok_status(), demand, parameters.store(), {}, options));
        std::vector<Buffer> mapped;
        std::vector<std::int64_t> pulled(kTrainers);
        for (int owner = 0; owner < kTrainers; ++owner) {
            const std::vector<std::byte>& card = cards[static_cast<std::size_t>(owner)];
            std::int64_t bytes = 0;
            std::memcpy(&bytes, card.data() + card.size() - sizeof bytes, sizeof bytes);
            SLUICE_ASSIGN_OR_RETURN(Buffer memory,
                                    device_.map(std::span(card).first(card.size() - sizeof bytes), bytes));
            mapped.push_back(std::move(memory));
        }
        for (const Chunk& chunk : worker->plan().route.chunks) {
            pulled[static_cast<std::size_t>(chunk.owner)] += chunk.wire_bytes;
        }

        std::vector<double> copy, sync;
        for (int version = 1; version <= versions(); ++version) {
            SLUICE_RETURN_IF_ERROR(together());
            const Clock::time_point begin = Clock::now();
            std::int64_t at = 0;
            for (int owner = 0; owner < kTrainers; ++owner) {
                const std::int64_t bytes = pulled[static_cast<std::size_t>(owner)];
                SLUICE_RETURN_IF_ERROR(device_.copy(block.data + at, mapped[static_cast<std::size_t>(owner)].data(),
                                                    static_cast<std::size_t>(bytes), 0));
                at += bytes;
            }
            SLUICE_RETURN_IF_ERROR(together());
            const double took = std::chrono::duration<double>(Clock::now() - begin).count();
            SLUICE_RETURN_IF_ERROR(parameters.poison());
            SLUICE_RETURN_IF_ERROR(together());
            SLUICE_RETURN_IF_ERROR(worker->sync(static_cast<std::uint64_t>(version)));
            SLUICE_RETURN_IF_ERROR(verifier.verify(worker->plan().route, static_cast<std::uint64_t>(version)).status);
            if (version > 1) {  // the first warms up
                copy.push_back(took);
                sync.push_back(worker->stats().seconds);
            }
        }
        SLUICE_RETURN_IF_ERROR(together());
        worker->close();
        if (rank > 0) {
            return ok_status();
        }
        std::vector<double> share;
        for (std::size_t i = 0; i < sync.size(); ++i) {
            share.push_back(copy[i] / sync[i]);
        }
        row = {{"name", "whole model, two and two"},
               {"bytes_of_one_worker", pulled[0] + pulled[1]},
               {"seconds", spread(sync)},
               {"copy_seconds", spread(copy)},
               {"share_of_copy", spread(share)}};
        return ok_status();
    }

    GpuPairsOptions options_;
    Settings settings_;
    Bootstrap& bootstrap_;
    Device& device_;
    const cli::Model& model_;
    cli::WeightValues values_;
    RouteOptions route_;
};

}  // namespace

Status bench_gpu_pairs(const GpuPairsOptions& options, nlohmann::json& row) {
    SLUICE_ASSIGN_OR_RETURN(Settings settings, Settings::from_environment());
    settings.adapt_to_device();
    log::set_level(LogLevel::kWarning);
    SLUICE_ASSIGN_OR_RETURN(const auto mpi, MpiBootstrap::create());
    if (mpi->size() != kTrainers + kWorkers) {
        return invalid_argument(fmt::format("{} ranks are measured, but {} were started; use mpirun -n {}",
                                            kTrainers + kWorkers, mpi->size(), kTrainers + kWorkers));
    }
    SLUICE_ASSIGN_OR_RETURN(const auto device, open_cuda_device(options.device, settings.copy_threads));
    SLUICE_ASSIGN_OR_RETURN(const cli::Model model, cli::open_model({"Qwen3-30B-A3B", {}, WeightForm::kCheckpoint}));
    SLUICE_RETURN_IF_ERROR(Pairs(options, settings, *mpi, *device, model).run(row));
    mpi->finalize();
    return ok_status();
}

void print_gpu_pairs_row(const nlohmann::json& row) {
    fmt::print(stderr, "{}: {} each, sync {:.1f} ms, copies {:.1f} ms, share {:.3f}\n", row["name"].get<std::string>(),
               human_bytes(row["bytes_of_one_worker"].get<std::int64_t>()),
               row["seconds"]["median"].get<double>() * 1e3, row["copy_seconds"]["median"].get<double>() * 1e3,
               row["share_of_copy"]["median"].get<double>());
}

}  // namespace sluice::bench

#include "bench/pull_pair.h"

#include "cli/verify_full.h"
#include "cli/worker_parameters.h"
#include "trainer/resident_source.h"
#include "trainer/trainer.h"
#include "transport/ucx/ucx_transport.h"
#include "worker/worker.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <sys/resource.h>
#include <utility>

namespace sluice::bench {
namespace {

using Clock = EventLoop::Clock;

// What the trainer holds, whatever a sync is called.
constexpr std::uint64_t kVersion = 1;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double cpu_seconds() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

PullPair::PullPair(const Options& options, Settings settings, Bootstrap& bootstrap, const cli::Model& model,
                   Ownership ownership)
    : options_(options),
      settings_(std::move(settings)),
      bootstrap_(bootstrap),
      model_(model),
      values_(model),
      ownership_(std::move(ownership)) {}

Status PullPair::prepare() {
    SharedMemoryHandle handle;
    if (trainer()) {
        SLUICE_ASSIGN_OR_RETURN(weights_, cli::TrainerWeights::allocate(model_.catalogue, ownership_, values_));
        SLUICE_RETURN_IF_ERROR(weights_->write_version(kVersion));
        handle = weights_->segment().shared.value();
    }
    SLUICE_ASSIGN_OR_RETURN(const auto handles,
                            bootstrap_.all_gather(std::as_bytes(std::span(&handle, 1)), deadline()));
    if (!trainer()) {
        std::memcpy(&handle, handles.front().data(), sizeof(handle));
        SLUICE_ASSIGN_OR_RETURN(copy_source_, map_shared_memory(handle, ownership_.segment_bytes.front()));
        SLUICE_ASSIGN_OR_RETURN(target_, Buffer::allocate(ownership_.segment_bytes.front(), MemoryKind::kHost));
        std::memset(target_->data(), 2, target_->size());
    }
    SLUICE_ASSIGN_OR_RETURN(
        raw_, RawGet::create(settings_, bootstrap_, trainer() ? weights_->bytes() : target_->bytes(), deadline()));
    return ok_status();
}

Result<PullTimings> PullPair::run(const Demand& demand, RouteOptions::PathChoice path) {
    PullTimings timings;
    for (const CopyRecord& record : demand.records) {
        timings.bytes += record.copy.bytes();
    }
    RouteOptions route;
    route.chunk_bytes = settings_.chunk_bytes;
    route.path = path;
    SLUICE_ASSIGN_OR_RETURN(auto session, Session::open(settings_, [this](EventLoop& loop) {
                                return transport::open_ucx_transport(loop, {settings_.ucx, settings_.show_ucx_log});
                            }));
    SLUICE_RETURN_IF_ERROR(trainer() ? serve(*session, route) : pull(*session, route, demand, timings));
    return timings;
}

Status PullPair::serve(Session& session, const RouteOptions& route) {
    ResidentSource source({weights_->segment()});
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

Status PullPair::pull(Session& session, const RouteOptions& route, const Demand& demand, PullTimings& timings) {
    SLUICE_ASSIGN_OR_RETURN(auto parameters, cli::WorkerParameters::allocate(demand));
    Worker::Options options;
    options.partial = true;  // of some series
    options.route = route;
    options.verify_hashes = options_.digest;
    SLUICE_ASSIGN_OR_RETURN(auto worker, Worker::create(session, bootstrap_, model_.catalogue, 0, 0, ok_status(),
                                                        demand, parameters.store(), {}, options));
    for (const Chunk& chunk : worker->plan().route.chunks) {
        timings.paths.insert(chunk.path);
    }
    const std::int64_t bytes = std::min(timings.bytes, ownership_.segment_bytes.front());
    for (int i = 0; i <= options_.repetitions; ++i) {
        // Before what it is measured beside, which leaves other things in the caches.
        SLUICE_RETURN_IF_ERROR(parameters.poison());
        const double raw_cpu_before = raw_->cpu_seconds();
        SLUICE_ASSIGN_OR_RETURN(const double raw, raw_->run(bytes));
        const double raw_cpu = raw_->cpu_seconds() - raw_cpu_before;
        const Clock::time_point begin = Clock::now();
        std::memcpy(target_->data(), copy_source_->data(), static_cast<std::size_t>(bytes));
        const double copy = seconds_since(begin);
        SLUICE_RETURN_IF_ERROR(together());
        const double cpu_before = cpu_seconds();
        SLUICE_RETURN_IF_ERROR(worker->sync(static_cast<std::uint64_t>(i) + 1));
        if (i > 0) {  // The first touches memory for the first time.
            timings.cpu.push_back(cpu_seconds() - cpu_before);
            timings.raw_cpu.push_back(raw_cpu);
            timings.raw.push_back(raw);
            timings.copy.push_back(copy);
            timings.pull.push_back(worker->stats().seconds);
        }
    }
    SLUICE_RETURN_IF_ERROR(
        cli::verify_full(model_.catalogue, demand, worker->plan().route, parameters.store(), values_, kVersion).status);
    worker->close();
    return ok_status();
}

}  // namespace sluice::bench

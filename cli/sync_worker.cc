#include "cli/kernel_storage.h"
#include "cli/sync_command.h"
#include "cli/verify_device.h"
#include "cli/verify_kernel.h"
#include "cli/weight_values.h"
#include "cli/worker_parameters.h"
#include "planner/dry_run.h"
#include "runtime/base/units.h"
#include "runtime/services/log.h"
#include "runtime/services/safetensors.h"
#include "worker/worker.h"

#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <set>
#include <unistd.h>

namespace sluice::cli {
namespace {

/// Where a worker rank stands among the pools.
struct Place {
    const WorkerLayout* pool = nullptr;
    int pool_rank = 0;
    int demand_key = 0;  ///< Equal for the same rank of all replicas of a pool.
};

Place place_of(const SyncOptions& options, int worker_rank) {
    int first = 0;
    int first_key = 0;
    for (const WorkerLayout& pool : options.workers) {
        if (worker_rank < first + pool.world_size()) {
            const int pool_rank = (worker_rank - first) % pool.pool_size();
            return {&pool, pool_rank, first_key + pool_rank};
        }
        first += pool.world_size();
        first_key += pool.pool_size();
    }
    return {};
}

struct WorkerParts {
    Demand demand;
    std::optional<WorkerParameters> parameters;
    std::optional<KernelStorage> kernel;  ///< With --hook.

    Status poison() {
        SLUICE_RETURN_IF_ERROR(parameters->poison());
        return kernel ? kernel->poison() : ok_status();
    }
};

Status make_parts(const SyncContext& context, const Place& place, WorkerParts& parts) {
    SLUICE_ASSIGN_OR_RETURN(parts.demand,
                            dry_run(context.model.catalogue, context.model.config, *place.pool, place.pool_rank));
    std::vector<ParameterId> buffered;
    if (context.options.fp8_blocks) {
        SLUICE_ASSIGN_OR_RETURN(parts.kernel,
                                KernelStorage::allocate(parts.demand, context.model.config, context.device));
        buffered = parts.kernel->format().quantised;
    }
    SLUICE_ASSIGN_OR_RETURN(parts.parameters, WorkerParameters::allocate(parts.demand, context.device, buffered));
    return ok_status();
}

/// --verify full.
FullVerification verify(const SyncContext& context, const WorkerParts& parts, ParameterVerifier& verifier,
                        const Route& route, const WeightValues& values, std::uint64_t version) {
    FullVerification result = verifier.verify(route, version);
    if (parts.kernel) {
        const auto host = parts.kernel->on_host();
        const FullVerification kernel = host.ok() ? verify_kernel_format(context.model.catalogue, parts.demand,
                                                                         *parts.kernel, *host, values, version)
                                                  : FullVerification{0, host.status()};
        result.mismatches += kernel.mismatches;
        result.status = result.status.ok() ? kernel.status : result.status;
    }
    return result;
}

Status dump(const SyncContext& context, const Place& place, const WorkerParts& parts, std::uint64_t version) {
    const std::string file = fmt::format("{}/worker-{}.safetensors", context.options.dump_directory, context.own_rank);
    SafetensorsMetadata metadata{{"version", std::to_string(version)},
                                 {"rank", std::to_string(context.own_rank)},
                                 {"layout", place.pool->to_string()}};
    SLUICE_ASSIGN_OR_RETURN(const auto host, parts.parameters->on_host());
    std::vector<SafetensorsTensor> tensors = parts.parameters->tensors(host);
    std::vector<std::byte> kernel_host;
    if (parts.kernel) {
        metadata["format"] = "fp8-blocks";
        SLUICE_ASSIGN_OR_RETURN(kernel_host, parts.kernel->on_host());
        for (SafetensorsTensor& tensor : parts.kernel->tensors(kernel_host)) {
            tensors.push_back(std::move(tensor));
        }
    }
    return write_safetensors(file, tensors, metadata);
}

// A line that is drawn over, for somebody who watches a terminal.
void show_progress(std::uint64_t version, int groups_landed) {
    fmt::print(stderr, "\rversion {}: {} groups landed ", version, groups_landed);
    std::fflush(stderr);
}

}  // namespace

void run_worker(const SyncContext& context, const Finish& finish) {
    const SyncOptions& options = context.options;
    RankReport report;
    report.rank = context.own_rank;
    const Place place = place_of(options, context.own_rank);
    const WeightValues values(context.model);

    WorkerParts parts;
    Status made = make_parts(context, place, parts);
    if (made.ok() && !options.dump_directory.empty()) {
        std::error_code error;
        std::filesystem::create_directories(options.dump_directory, error);
        if (error) {
            made = invalid_argument(
                fmt::format("--dump {}: cannot make the directory: {}", options.dump_directory, error.message()));
        }
    }
    Worker::Options worker_options;
    worker_options.route = options.route;
    worker_options.verify_hashes = options.verify == VerifyMode::kDigest;
    worker_options.slow_owners = options.slow_owners;
    worker_options.layers_in_flight = options.layers_in_flight;
    for (const auto& [rank, milliseconds] : options.slow_workers) {
        if (rank == context.own_rank) {
            worker_options.delay_per_chunk = std::chrono::milliseconds(milliseconds);
        }
    }
    const bool progress = context.own_rank == 0 && ::isatty(STDERR_FILENO) == 1;
    int groups_landed = 0;
    Worker* receiver = nullptr;
    Worker::Hooks hooks;
    if (parts.kernel) {
        hooks.layers = parts.kernel->hooks();
    }
    hooks.on_group = [&](std::uint64_t version, GroupId /*group*/) {
        const std::optional<Death>& death = options.death;
        if (death && death->world_rank == context.bootstrap.rank() && death->version == version &&
            death->group == groups_landed) {
            ::kill(::getpid(), SIGKILL);
        }
        ++groups_landed;
        if (progress) {
            show_progress(version, groups_landed);
        }
        return ok_status();
    };
    std::optional<ParameterVerifier> verifier;
    if (options.verify == VerifyMode::kFull && parts.parameters) {
        verifier.emplace(context.model.catalogue, parts.demand, *parts.parameters, values, context.device);
        hooks.before_commit = [&](std::uint64_t version) {
            const FullVerification result = verify(context, parts, *verifier, receiver->plan().route, values, version);
            report.mismatches += result.mismatches;
            return result.status;
        };
    }
    auto worker =
        Worker::create(context.session, context.bootstrap, context.model.catalogue, context.own_rank, place.demand_key,
                       made, parts.demand, parts.parameters ? parts.parameters->store() : ParameterStore{},
                       std::move(hooks), worker_options);
    if (!worker.ok()) {
        finish(worker.status(), report);
        return;
    }
    context.ready();
    receiver = worker->get();
    if (parts.kernel) {
        log::info("layer buffers: {} of {} in all", receiver->layer_buffers(),
                  format_bytes(receiver->layer_buffer_bytes()));
    }
    std::int64_t registrations_before = 0;
    std::int64_t growth_before = 0;
    std::int64_t messages_before = 0;
    Status status;
    for (std::uint64_t version = 1; version <= options.versions && status.ok(); ++version) {
        groups_landed = 0;
        status = start_together(context, version, parts.poison());
        if (!status.ok()) {
            break;
        }
        const double cpu_before = transport_cpu_seconds(context.session);
        status = receiver->sync(version);
        const Worker::Stats& stats = receiver->stats();
        if (!status.ok()) {
            break;
        }
        VersionReport& v = report.versions.emplace_back();
        v.version = version;
        v.seconds = stats.seconds;
        v.transport_cpu_s = transport_cpu_seconds(context.session) - cpu_before;
        v.bytes = stats.bytes;
        v.reading_share = stats.seconds > 0 ? stats.reading_seconds / stats.seconds : 0;
        v.pull_s = stats.pull_seconds;
        v.scatter_s = stats.scatter_seconds;
        v.hooks_s = stats.hook_seconds;
        v.commit_s = stats.commit_seconds;
        v.plan_wire_bytes = version == 1 ? receiver->plan().wire_bytes : 0;
        v.registrations =
            context.session.registrations() - std::exchange(registrations_before, context.session.registrations());
        v.allocations = context.session.pool_growth() - std::exchange(growth_before, context.session.pool_growth());
        v.messages = context.session.messages_sent() - std::exchange(messages_before, context.session.messages_sent());
    }
    if (progress) {
        fmt::print(stderr, "\n");
    }
    if (status.code() == StatusCode::kMismatch && options.verify == VerifyMode::kDigest && report.mismatches == 0) {
        report.mismatches = receiver->mismatched_chunks();
    }
    std::set<GroupId> groups;
    for (const Chunk& chunk : receiver->plan().route.chunks) {
        groups.insert(chunk.group);
    }
    report.groups = static_cast<std::int64_t>(groups.size());
    report.chunks = static_cast<std::int64_t>(receiver->plan().route.chunks.size());
    report.peak_staging_bytes = receiver->staging_peak();
    report.layer_buffer_bytes = receiver->layer_buffer_bytes();
    for (const LinkTraffic& traffic : receiver->stats().links) {
        LinkReport& link = report.links.emplace_back();
        link.trainer = traffic.trainer_rank;
        link.bytes = traffic.bytes;
        link.mapped_bytes = traffic.mapped_bytes;
        link.seconds = traffic.seconds;
        for (const auto& [trainer, info] : receiver->links()) {
            if (trainer == traffic.trainer_rank) {
                link.transport = info.transport;
                link.one_sided = info.link_class == transport::LinkClass::kOneSided;
            }
        }
    }
    if (status.ok()) {
        // Also without --dump: of two programs only one may have been given it.
        status = agree_on_dump(
            context, options.dump_directory.empty() ? ok_status() : dump(context, place, parts, receiver->version()));
    }
    finish(status, report);
    receiver->close();
}

}  // namespace sluice::cli

#include "cli/sync_command.h"
#include "cli/trainer_weights.h"
#include "cli/weight_values.h"
#include "planner/gather.h"
#include "planner/trainer_ownership.h"
#include "runtime/services/log.h"
#include "trainer/gathered_source.h"
#include "trainer/resident_source.h"
#include "trainer/trainer.h"

#include <csignal>
#include <memory>
#include <unistd.h>

namespace sluice::cli {
namespace {

/// Everything that a trainer rank needs before it meets the others.
struct TrainerParts {
    Ownership offered;
    Ownership stored;
    std::optional<GatherDemand> gather;
    std::optional<TrainerWeights> weights;
    std::unique_ptr<WeightSource> source;
};

Status make_parts(const SyncContext& context, const WeightValues& values, TrainerParts& parts) {
    const SyncOptions& options = context.options;
    const Model& model = context.model;
    SLUICE_ASSIGN_OR_RETURN(parts.offered, trainer_ownership(model.catalogue, model.config, options.trainer,
                                                             context.own_rank, options.source));
    SLUICE_ASSIGN_OR_RETURN(parts.stored,
                            shard_ownership(model.catalogue, model.config, options.trainer, context.own_rank));
    SLUICE_ASSIGN_OR_RETURN(parts.weights, TrainerWeights::allocate(model.catalogue, parts.stored, values,
                                                                    context.device, context.settings.mapped));
    std::vector<WeightSource::Segment> segments = {parts.weights->segment()};
    if (options.source == SourceKind::kResident) {
        parts.source = std::make_unique<ResidentSource>(std::move(segments));
        return ok_status();
    }
    SLUICE_ASSIGN_OR_RETURN(parts.gather,
                            gather_demand(model.catalogue, model.config, options.trainer, context.own_rank));
    parts.source = std::make_unique<GatheredSource>(
        std::move(segments), RankInput::Gather{parts.stored, *parts.gather}, parts.offered.gathered_bytes,
        GatheredSource::Options{options.verify == VerifyMode::kDigest, context.settings.staging_bytes,
                                context.gather_group});
    return ok_status();
}

}  // namespace

void run_trainer(const SyncContext& context, const Finish& finish) {
    const SyncOptions& options = context.options;
    RankReport report;
    report.trainer = true;
    report.rank = context.own_rank;

    const WeightValues values(context.model);
    TrainerParts parts;
    Trainer::Options trainer_options;
    trainer_options.route = options.route;
    trainer_options.verify_hashes = options.verify == VerifyMode::kDigest;
    trainer_options.before_publish = [&](std::uint64_t version, int position) {
        const std::optional<Death>& death = options.death;
        if (death && death->world_rank == context.bootstrap.rank() && death->version == version &&
            death->group == position) {
            ::kill(::getpid(), SIGKILL);
        }
    };
    const Status made = make_parts(context, values, parts);
    auto trainer = Trainer::create(context.session, context.bootstrap, context.model.catalogue, context.own_rank, made,
                                   parts.offered, parts.source.get(), trainer_options);
    if (!trainer.ok()) {
        finish(trainer.status(), report);
        return;
    }
    context.ready();
    Trainer& sender = **trainer;
    std::int64_t registrations_before = 0;
    std::int64_t growth_before = 0;
    std::int64_t messages_before = 0;
    Status status;
    for (std::uint64_t version = 1; version <= options.versions && status.ok(); ++version) {
        // What this rank could not write fails the version, and nobody waits for it.
        const Status written = parts.weights->write_version(version);
        status = start_together(context, version, written);
        if (!status.ok()) {
            break;
        }
        const double cpu_before = transport_cpu_seconds(context.session);
        status = sender.sync(version);
        const Trainer::Stats& stats = sender.stats();
        if (!status.ok()) {
            break;
        }
        VersionReport& v = report.versions.emplace_back();
        v.version = version;
        v.seconds = stats.seconds;
        v.transport_cpu_s = transport_cpu_seconds(context.session) - cpu_before;
        v.gather_s = stats.gather_seconds;
        v.pack_s = stats.pack_seconds;
        v.copied_on_trainer = stats.packed_bytes;
        v.plan_wire_bytes = version == 1 ? sender.plan().wire_bytes : 0;
        v.registrations =
            context.session.registrations() - std::exchange(registrations_before, context.session.registrations());
        v.allocations = context.session.pool_growth() - std::exchange(growth_before, context.session.pool_growth());
        v.messages = context.session.messages_sent() - std::exchange(messages_before, context.session.messages_sent());
        report.peak_groups = std::max<std::int64_t>(report.peak_groups, stats.peak_groups);
    }
    report.groups = static_cast<std::int64_t>(sender.plan().owner_route.group_order.size());
    for (const ServedDemand& demand : sender.plan().owner_route.demands) {
        report.chunks += static_cast<std::int64_t>(demand.chunks.size() * demand.workers.size());
    }
    report.peak_trainer_bytes = sender.buffer_bytes();
    if (parts.gather) {
        report.chunks += static_cast<std::int64_t>(sender.plan().gather_route.chunks.size());
        const GatherBytes bytes =
            gather_bytes(options.trainer, context.own_rank, *parts.gather, sender.plan().gather_route);
        report.gather_tp = bytes.tp;
        report.gather_etp = bytes.etp;
        report.gather_fsdp = bytes.fsdp;
        report.gather_ep = bytes.ep;
        report.gather_pp = bytes.pp;
    }
    if (status.ok()) {
        status = agree_on_dump(context);
    }
    finish(status, report);
    sender.close();
}

}  // namespace sluice::cli

#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/explain.h"
#include "cli/json_output.h"
#include "cli/plan_builder.h"
#include "cli/plan_difference.h"
#include "planner/cost_model.h"
#include "planner/plan_codec.h"
#include "planner/plan_summary.h"
#include "runtime/base/settings.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>

namespace sluice::cli {

namespace {

struct PlanOptions {
    LayoutOptions layout;
    std::string cluster, json, save, explain, diff, replan, staging, slots;
};

PlanFile plan_file(const PlanOptions& options, const Model& model, const PlanRequest& request, const BuiltPlan& built) {
    PlanFile file;
    file.model = options.layout.model;
    file.trainer_layout = request.trainer.to_string();
    for (const WorkerLayout& pool : request.workers) {
        file.worker_layouts.push_back(pool.to_string());
    }
    file.catalogue_digest = model.catalogue.digest();
    file.limits = {request.trainer.world_size(), built.workers, model.catalogue.groups(), request.route.chunk_bytes};
    file.demands = built.demands;
    file.plan = built.plan;
    file.catalogue = model.catalogue;
    return file;
}

Status run_plan(const PlanOptions& options) {
    SLUICE_ASSIGN_OR_RETURN(Settings settings, Settings::from_environment());
    PlanRequest request;
    SLUICE_ASSIGN_OR_RETURN(request.trainer, options.layout.trainer_layout());
    SLUICE_ASSIGN_OR_RETURN(request.workers, options.layout.worker_layouts());
    request.source = options.layout.source_kind();
    SLUICE_ASSIGN_OR_RETURN(request.route, options.layout.route_options(settings));
    settings.set_chunk_bytes(request.route.chunk_bytes);
    if (!options.staging.empty()) {
        SLUICE_ASSIGN_OR_RETURN(settings.staging_bytes, parse_size("--staging", options.staging, 1));
    }
    if (!options.slots.empty()) {
        SLUICE_ASSIGN_OR_RETURN(settings.slots, parse_count("--slots", options.slots, 1));
    }
    std::optional<ClusterSpec> cluster;
    if (!options.cluster.empty()) {
        Result<ClusterSpec> parsed = ClusterSpec::parse(options.cluster);
        if (!parsed.ok()) {
            return parsed.status().with_context(fmt::format("--cluster {}", options.cluster));
        }
        cluster = *parsed;
    }
    SLUICE_ASSIGN_OR_RETURN(const Model model, open_model(options.layout.model_choice()));
    if (const std::optional<std::string> warning = tied_head_warning(model)) {
        fmt::print(stderr, "sluice: warning: {}\n", *warning);
    }
    std::optional<PlanFile> before;
    if (!options.replan.empty()) {
        SLUICE_ASSIGN_OR_RETURN(before, read_plan_file(options.replan));
    }
    std::optional<PlanFile> other;  // before --save, which may write the same file
    if (!options.diff.empty()) {
        SLUICE_ASSIGN_OR_RETURN(other, read_plan_file(options.diff));
    }
    Result<BuiltPlan> made = build_plan(model, request, before ? &*before : nullptr);
    if (!made.ok()) {
        return before ? made.status().with_context(fmt::format("--replan {}", options.replan)) : made.status();
    }
    BuiltPlan built = std::move(*made);

    built.facts.worker_staging_bytes = settings.staging_bytes;
    built.facts.trainer_slot_bytes = settings.slots * settings.chunk_bytes;
    if (cluster) {
        built.facts.bound =
            cost_bound(*cluster, built.plan, built.owners, built.workers, built.gather ? &*built.gather : nullptr);
    }
    const PlanSummary summary = summarize(model.catalogue, built.owners, built.plan, built.facts);
    const Output output(options.json);
    if (options.explain.empty()) {
        fmt::print(output.people(), "{}", to_table(summary));
    } else {
        SLUICE_ASSIGN_OR_RETURN(const std::string text,
                                explain(model.catalogue, built.demands, built.plan, options.explain));
        fmt::print(output.people(), "{}", text);
    }
    if (const std::optional<ReplanCounts>& counts = built.replanned) {
        fmt::print(output.people(), "replanned  {} records kept, {} routed; {} chunks kept, {} made\n",
                   counts->records_kept, counts->records_routed, counts->chunks_kept, counts->chunks_made);
    }
    SLUICE_RETURN_IF_ERROR(output.write_json(to_json(summary)));
    const PlanFile file = plan_file(options, model, request, built);
    if (!options.save.empty()) {
        SLUICE_RETURN_IF_ERROR(write_file(options.save, encode_plan_file(file)));
    }
    if (other) {
        const std::string text = plan_differences(options.diff, *other, file);
        if (!text.empty()) {
            fmt::print(output.people(), "{}", text);
            return Status(StatusCode::kMismatch, fmt::format("the plan differs from {}", options.diff));
        }
        fmt::print(output.people(), "same plan as {}\n", options.diff);
    }
    return ok_status();
}

}  // namespace

void add_plan_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand(
        "plan",
        "Plan a transfer: bytes per link, memory, coverage and, for a cluster, time. Needs neither GPUs nor MPI");
    const auto options = std::make_shared<PlanOptions>();
    options->layout.add_to(*command);
    command
        ->add_option("--cluster", options->cluster,
                     "Nodes to bound the time for: gpus_per_node=8,nic_gbps=400[,nvlink_gbps=3600]")
        ->type_name("SPEC");
    command
        ->add_option("--json", options->json,
                     "Write the results as JSON to FILE; - is stdout, and the table then goes to stderr")
        ->type_name("FILE");
    command->add_option("--save", options->save, "Write the compiled plan to FILE")->type_name("FILE");
    command->add_option("--diff", options->diff, "Compare with a plan that --save wrote; exit code 5 when they differ")
        ->type_name("FILE");
    command
        ->add_option(
            "--replan", options->replan,
            "Start from a plan that --save wrote before the expert map changed: only the experts that moved are "
            "routed anew")
        ->type_name("FILE");
    command
        ->add_option("--explain", options->explain,
                     "Show where each part of a worker's parameter comes from, instead of the table")
        ->type_name("RANK:PARAM");
    command
        ->add_option("--staging", options->staging, "A worker's staging memory (default 64M, or SLUICE_STAGING_BYTES)")
        ->type_name("SIZE");
    command
        ->add_option("--slots", options->slots,
                     "Most memory for packed chunks of a trainer rank, in whole chunks (default 8, or SLUICE_SLOTS)")
        ->type_name("N");
    command->callback([options, &run] { run = [options] { return report(run_plan(*options)); }; });
}

}  // namespace sluice::cli

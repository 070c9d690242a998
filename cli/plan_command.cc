#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/explain.h"
#include "cli/json_output.h"
#include "cli/plan_builder.h"
#include "planner/cost_model.h"
#include "planner/plan_codec.h"
#include "planner/plan_summary.h"
#include "runtime/base/settings.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>

namespace sluice::cli {

namespace {

constexpr std::size_t kMostPlanBytes = std::size_t{1} << 30;

struct PlanOptions {
    LayoutOptions layout;
    std::string cluster, json, save, explain, diff, staging, slots;
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
    return file;
}

/// What differs between two plans, one line each.
Result<std::string> differences(const std::string& path, const PlanFile& ours, const Catalogue& catalogue) {
    SLUICE_ASSIGN_OR_RETURN(const std::string bytes, read_file(path, kMostPlanBytes));
    Result<PlanFile> decoded = decode_plan_file(bytes, catalogue);
    if (!decoded.ok()) {
        return decoded.status().with_context(path);
    }
    const PlanFile& theirs = *decoded;
    if (theirs.plan.fingerprint == ours.plan.fingerprint && encode_plan_file(theirs) == encode_plan_file(ours)) {
        return std::string();
    }
    std::string text;
    const auto line = [&](const char* what, const auto& old_value, const auto& new_value) {
        if (!(old_value == new_value)) {
            text += fmt::format("{}: {} in {}, now {}\n", what, old_value, path, new_value);
        }
    };
    line("trainer layout", theirs.trainer_layout, ours.trainer_layout);
    line("worker layouts", fmt::format("{}", fmt::join(theirs.worker_layouts, " ")),
         fmt::format("{}", fmt::join(ours.worker_layouts, " ")));
    line("chunk bytes", theirs.limits.chunk_bytes, ours.limits.chunk_bytes);
    line("distinct worker ranks", theirs.demands.size(), ours.demands.size());
    line("fingerprint", fmt::format("{:016x}", theirs.plan.fingerprint), fmt::format("{:016x}", ours.plan.fingerprint));
    for (std::size_t i = 0; i < std::min(theirs.demands.size(), ours.demands.size()); ++i) {
        if (encode_demand(theirs.demands[i]) != encode_demand(ours.demands[i])) {
            text += fmt::format("demand {}: other parameters or records\n", i);
        }
        if (encode_route(theirs.plan.routes[i]) != encode_route(ours.plan.routes[i])) {
            text += fmt::format("demand {}: another route ({} chunks, now {})\n", i,
                                theirs.plan.routes[i].chunks.size(), ours.plan.routes[i].chunks.size());
        }
    }
    return text;
}

Status run_plan(const PlanOptions& options) {
    SLUICE_ASSIGN_OR_RETURN(Settings settings, Settings::from_environment());
    PlanRequest request;
    SLUICE_ASSIGN_OR_RETURN(request.trainer, options.layout.trainer_layout());
    SLUICE_ASSIGN_OR_RETURN(request.workers, options.layout.worker_layouts());
    request.source = options.layout.source_kind();
    SLUICE_ASSIGN_OR_RETURN(request.route, options.layout.route_options(settings.chunk_bytes));
    settings.chunk_bytes = request.route.chunk_bytes;
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
    SLUICE_ASSIGN_OR_RETURN(BuiltPlan built, build_plan(model, request));

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
        SLUICE_ASSIGN_OR_RETURN(const std::string text, explain(model.catalogue, built, options.explain));
        fmt::print(output.people(), "{}", text);
    }
    SLUICE_RETURN_IF_ERROR(output.write_json(to_json(summary)));
    const PlanFile file = plan_file(options, model, request, built);
    if (!options.save.empty()) {
        SLUICE_RETURN_IF_ERROR(write_file(options.save, encode_plan_file(file)));
    }
    if (!options.diff.empty()) {
        SLUICE_ASSIGN_OR_RETURN(const std::string text, differences(options.diff, file, model.catalogue));
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
        ->add_option("--explain", options->explain,
                     "Show where each part of a worker's parameter comes from, instead of the table")
        ->type_name("RANK:PARAM");
    command
        ->add_option("--staging", options->staging, "A worker's staging memory (default 64M, or SLUICE_STAGING_BYTES)")
        ->type_name("SIZE");
    command
        ->add_option("--slots", options->slots,
                     "Serve slots of a trainer rank, each of one chunk (default 8, or SLUICE_SLOTS)")
        ->type_name("N");
    command->callback([options, &run] { run = [options] { return report(run_plan(*options)); }; });
}

}  // namespace sluice::cli

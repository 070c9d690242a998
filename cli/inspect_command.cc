#include "cli/commands.h"
#include "cli/explain.h"
#include "cli/json_output.h"
#include "cli/plan_difference.h"
#include "planner/plan_file_header.h"
#include "planner/plan_format.h"
#include "planner/plan_summary.h"
#include "runtime/base/units.h"
#include "runtime/services/safetensors.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

namespace sluice::cli {

namespace {

Status inspect_safetensors(const std::string& path) {
    SLUICE_ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::open(path));
    std::int64_t bytes = 0;
    for (const SafetensorsTensor& tensor : reader.tensors()) {
        fmt::print("{:<9} {:<24} {}\n", to_string(tensor.dtype), to_string(std::span<const std::int64_t>(tensor.shape)),
                   tensor.name);
        bytes += static_cast<std::int64_t>(tensor.bytes.size());
    }
    for (const auto& [key, value] : reader.metadata()) {
        fmt::print("metadata  {} = {}\n", key, value);
    }
    fmt::print("{} tensors, {} bytes ({}), {} file{}\n", reader.tensors().size(), bytes, human_bytes(bytes),
               reader.files().size(), reader.files().size() == 1 ? "" : "s");
    return ok_status();
}

/// By content: plans start with their magic, everything else is held to be safetensors.
bool starts_with_plan_magic(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    char magic[4] = {};
    return stream.read(magic, sizeof magic) && std::string_view(magic, sizeof magic) == "SLPN";
}

Status inspect_plan(const std::string& path) {
    constexpr std::size_t kMostPlanBytes = std::size_t{1} << 30;
    SLUICE_ASSIGN_OR_RETURN(const std::string bytes, read_file(path, kMostPlanBytes));
    Result<PlanFileHeader> header = read_plan_file_header(bytes);
    if (!header.ok()) {
        return header.status().with_context(path);
    }
    fmt::print("plan {:016x} of {} bytes, format {}\n", header->fingerprint, bytes.size(), kPlanFormatVersion);
    fmt::print("model      {} (catalogue {:016x}, {} groups)\n", header->model, header->catalogue_digest,
               header->limits.groups);
    fmt::print("trainers   {}: {}\n", header->limits.trainers, header->trainer_layout);
    fmt::print("workers    {}: {}\n", header->limits.workers, fmt::join(header->worker_layouts, " "));
    fmt::print("chunks     of at most {}\n", format_bytes(header->limits.chunk_bytes));
    for (std::size_t i = 0; i < header->demands.size(); ++i) {
        const PlanFileHeader::Demand& demand = header->demands[i];
        fmt::print("demand {:<3} workers {}: {} parameters, {} records, {} chunks\n", i, fmt::join(demand.workers, ","),
                   demand.parameters, demand.records, demand.chunks);
    }
    return ok_status();
}

Status explain_plan(const std::string& path, const std::string& parameter) {
    SLUICE_ASSIGN_OR_RETURN(const PlanFile file, read_plan_file(path));
    SLUICE_ASSIGN_OR_RETURN(const std::string text, explain(file.catalogue, file.demands, file.plan, parameter));
    fmt::print("{}", text);
    return ok_status();
}

}  // namespace

void add_inspect_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand(
        "inspect", "Show what is in a safetensors file, a checkpoint directory, or a plan that `plan --save` wrote");
    const auto path = std::make_shared<std::string>();
    const auto parameter = std::make_shared<std::string>();
    command->add_option("FILE", *path, "A .safetensors file, a directory of them, or a plan")->required();
    command
        ->add_option("--explain", *parameter,
                     "Of a plan: show where each part of a worker's parameter comes from, by which path")
        ->type_name("RANK:PARAM");
    command->callback([path, parameter, &run] {
        run = [path, parameter] {
            std::error_code error;
            if (!std::filesystem::exists(*path, error)) {
                return report(invalid_argument(fmt::format("cannot read {}: it does not exist", *path)));
            }
            const bool plan = starts_with_plan_magic(*path);
            if (!parameter->empty()) {
                return report(plan ? explain_plan(*path, *parameter)
                                   : invalid_argument(fmt::format("--explain: {} is no plan", *path)));
            }
            return report(plan ? inspect_plan(*path) : inspect_safetensors(*path));
        };
    });
}

}  // namespace sluice::cli

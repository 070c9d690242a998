#include "cli/model_source.h"

#include "cli/json_output.h"
#include "planner/builtin_models.h"
#include "planner/catalogue_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

namespace sluice::cli {

namespace {

constexpr std::size_t kMostConfigBytes = std::size_t{64} << 20;
constexpr int kDeepestConfig = 64;

Status apply_sets(ModelConfig& config, const std::vector<std::string>& sets) {
    for (const std::string& set : sets) {
        const std::size_t equals = set.find('=');
        if (equals == std::string::npos) {
            return invalid_argument(fmt::format("--set {}: give it as key=value", set));
        }
        SLUICE_RETURN_IF_ERROR(
            config.set(std::string_view(set).substr(0, equals), std::string_view(set).substr(equals + 1)));
    }
    return ok_status();
}

Status shape_differs(const CatalogueTensor& found, const CatalogueTensor& expected, const std::string& where) {
    return invalid_argument(
        fmt::format("tensor {} is {} in {}, by the config it is {}; config and weights do not belong together",
                    found.name, to_string(std::span<const std::int64_t>(found.shape)), where,
                    to_string(std::span<const std::int64_t>(expected.shape))));
}

/// Tensors that a worker never reads, which a file may leave out: layers of a draft model, rotary buffers, a tied head.
bool may_be_missing(const CatalogueTensor& expected) {
    return !expected.tied_to.empty() || expected.name.ends_with(".rotary_emb.inv_freq") ||
           (expected.group == 0 && expected.name.find("model.layers.") == 0);
}

/// Holds what a directory or a file lists against what the config asks for.
Result<Catalogue> check_listed(std::vector<CatalogueTensor> listed, const Catalogue& expected,
                               const std::string& where) {
    std::vector<bool> seen(expected.size(), false);
    for (CatalogueTensor& tensor : listed) {
        const std::optional<TensorId> id = expected.find(tensor.name);
        if (!id) {
            continue;
        }
        seen[static_cast<std::size_t>(*id)] = true;
        if (tensor.shape != expected[*id].shape) {
            return shape_differs(tensor, expected[*id], where);
        }
        tensor.tied_to = expected[*id].tied_to;
    }
    for (std::size_t id = 0; id < expected.size(); ++id) {
        const CatalogueTensor& tensor = expected[static_cast<TensorId>(id)];
        if (!seen[id] && !may_be_missing(tensor)) {
            const auto missing = std::count(seen.begin(), seen.end(), false);
            return plan_refused(
                fmt::format("tensor {} {} is missing in {}{}; the config asks for it", tensor.name,
                            to_string(std::span<const std::int64_t>(tensor.shape)), where,
                            missing > 1 ? fmt::format(" ({} are missing in all)", missing) : std::string()));
        }
    }
    return Catalogue::create(std::move(listed), expected.groups() - 2);
}

Result<Model> from_catalogue_file(CatalogueFile file, const ModelChoice& choice) {
    Model model;
    model.name = std::move(file.name);
    SLUICE_RETURN_IF_ERROR(apply_sets(file.config, choice.sets));
    model.config = std::move(file.config);
    SLUICE_ASSIGN_OR_RETURN(model.catalogue, checkpoint_catalogue(model.config, choice.form));
    std::vector<CatalogueTensor>& listed = choice.form == WeightForm::kPublished && !file.published_tensors.empty()
                                               ? file.published_tensors
                                               : file.checkpoint_tensors;
    // The listing says what the config alone cannot (dtypes); it no longer holds once a field is overridden.
    if (choice.sets.empty() && !listed.empty()) {
        SLUICE_ASSIGN_OR_RETURN(model.catalogue,
                                check_listed(std::move(listed), model.catalogue, "catalogue " + model.name));
    }
    return model;
}

Result<ModelConfig> read_config(const std::string& path) {
    SLUICE_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMostConfigBytes));
    int depth = 0;
    const nlohmann::json::parser_callback_t bounded = [&depth](int level, nlohmann::json::parse_event_t /*event*/,
                                                               nlohmann::json& /*value*/) {
        depth = std::max(depth, level);
        return level <= kDeepestConfig;
    };
    nlohmann::json config = nlohmann::json::parse(text, bounded, /*allow_exceptions=*/false);
    if (config.is_discarded() || depth > kDeepestConfig) {
        return invalid_argument(fmt::format("{} is no JSON (syntax, or nested too deep)", path));
    }
    Result<ModelConfig> result = ModelConfig::create(std::move(config));
    if (!result.ok()) {
        return result.status().with_context(path);
    }
    return result;
}

/// Published forms have tensors that the trainer's form has not.
WeightForm form_of(const SafetensorsReader& files) {
    const auto marks = [](const SafetensorsTensor& tensor) {
        return tensor.name.ends_with(".weight_scale_inv") || tensor.name.ends_with("_proj_blocks");
    };
    return std::any_of(files.tensors().begin(), files.tensors().end(), marks) ? WeightForm::kPublished
                                                                              : WeightForm::kCheckpoint;
}

Result<Model> from_directory(const ModelChoice& choice) {
    const std::filesystem::path directory(choice.model);
    Model model;
    model.name = std::filesystem::absolute(directory).lexically_normal().filename().string();
    if (model.name.empty()) {
        model.name = std::filesystem::absolute(directory).lexically_normal().parent_path().filename().string();
    }
    SLUICE_ASSIGN_OR_RETURN(model.config, read_config((directory / "config.json").string()));
    SLUICE_RETURN_IF_ERROR(apply_sets(model.config, choice.sets));
    SLUICE_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::open(directory));
    model.files = std::make_shared<const SafetensorsReader>(std::move(reader));
    SLUICE_ASSIGN_OR_RETURN(const Catalogue expected, checkpoint_catalogue(model.config, form_of(*model.files)));
    std::vector<CatalogueTensor> listed;
    listed.reserve(model.files->tensors().size());
    for (const SafetensorsTensor& tensor : model.files->tensors()) {
        listed.push_back({tensor.name, tensor.dtype, tensor.shape, 0, {}});
    }
    SLUICE_ASSIGN_OR_RETURN(model.catalogue, check_listed(std::move(listed), expected, choice.model));
    for (const CatalogueTensor& tensor : model.catalogue.tensors()) {
        model.file_tensors.push_back(model.files->find(tensor.name));
    }
    return model;
}

}  // namespace

Result<Model> open_model(const ModelChoice& choice) {
    const auto builtin = [&](const BuiltinModel& model) { return model.name == choice.model; };
    const bool is_name = std::any_of(builtin_models().begin(), builtin_models().end(), builtin);
    std::error_code error;
    if (!is_name && std::filesystem::is_directory(choice.model, error)) {
        if (choice.form == WeightForm::kPublished) {
            return invalid_argument(
                fmt::format("--weights published: it is for generated weights, and {} is a directory, whose files say "
                            "what they are; leave it out",
                            choice.model));
        }
        return from_directory(choice);
    }
    const bool is_path = choice.model.find('/') != std::string::npos || choice.model.ends_with(".json");
    if (!is_name && (is_path || std::filesystem::exists(choice.model, error))) {
        SLUICE_ASSIGN_OR_RETURN(const std::string text, read_file(choice.model, kMostConfigBytes));
        SLUICE_ASSIGN_OR_RETURN(CatalogueFile file, parse_catalogue_file(text, choice.model));
        return from_catalogue_file(std::move(file), choice);
    }
    SLUICE_ASSIGN_OR_RETURN(CatalogueFile file, builtin_model(choice.model));
    return from_catalogue_file(std::move(file), choice);
}

std::optional<std::string> tied_head_warning(const Model& model) {
    for (std::size_t id = 0; id < model.file_tensors.size(); ++id) {
        const CatalogueTensor& head = model.catalogue[static_cast<TensorId>(id)];
        const std::optional<TensorId> table = head.tied_to.empty() ? std::nullopt : model.catalogue.find(head.tied_to);
        if (!table) {
            continue;
        }
        const SafetensorsTensor& mine = *model.file_tensors[id];
        const SafetensorsTensor& other = *model.file_tensors[static_cast<std::size_t>(*table)];
        if (mine.dtype != other.dtype ||
            !std::equal(mine.bytes.begin(), mine.bytes.end(), other.bytes.begin(), other.bytes.end())) {
            return fmt::format("{} is stored and differs from {}, which it is tied to; it is not used", head.name,
                               head.tied_to);
        }
    }
    return std::nullopt;
}

}  // namespace sluice::cli

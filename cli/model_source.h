#pragma once

#include "planner/catalogue.h"
#include "planner/model_config.h"
#include "runtime/base/status.h"
#include "runtime/services/safetensors.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sluice::cli {

/// What --model, --set and --weights say.
struct ModelChoice {
    std::string model;              ///< Name of a catalogue, catalogue file, or Hugging Face directory.
    std::vector<std::string> sets;  ///< "key=value"
    WeightForm form = WeightForm::kCheckpoint;
};

/// A model that was found, with the files that hold its weights when it is a directory.
struct Model {
    std::string name;
    ModelConfig config;
    Catalogue catalogue;
    /// Null: the weights are generated.
    std::shared_ptr<const SafetensorsReader> files;
    /// By TensorId; empty when the weights are generated. Valid while `files` lives.
    std::vector<const SafetensorsTensor*> file_tensors;
};

/// Finds the model. A directory's catalogue lists the files' tensors, checked against the config: a shape that differs is an
/// invalid argument that names tensor, both shapes and directory; a tensor that is missing is a refused plan. Tensors that the
/// config does not ask for stay listed. Same choice and files: same catalogue, on every rank.
Result<Model> open_model(const ModelChoice& choice);

/// A line to warn with when the files hold a head although the model is tied, and it differs from the table: it is not used.
/// Reads both, so one rank should ask.
std::optional<std::string> tied_head_warning(const Model& model);

}  // namespace sluice::cli

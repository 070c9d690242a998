#pragma once

#include "planner/catalogue.h"
#include "planner/model_config.h"
#include "runtime/base/status.h"

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// A catalogue file (models/*.json): a config, and the tensors it stands for written as patterns.
struct CatalogueFile {
    std::string name;
    ModelConfig config;
    /// "checkpoint_tensors" and "published.tensors", expanded; empty when the file has none.
    std::vector<CatalogueTensor> checkpoint_tensors;
    std::vector<CatalogueTensor> published_tensors;
};

/// Refuses what is no catalogue, naming `origin` (a file or model name) and the field.
Result<CatalogueFile> parse_catalogue_file(std::string_view text, const std::string& origin);

}  // namespace sluice

#pragma once

#include "planner/catalogue_file.h"
#include "runtime/base/status.h"

#include <span>
#include <string_view>

namespace sluice {

/// A file of models/, compiled into the library.
struct BuiltinModel {
    std::string_view name;  ///< "Qwen3-30B-A3B"
    std::string_view json;
};

/// All of them, sorted by name.
std::span<const BuiltinModel> builtin_models();

/// The catalogue file of that name; an unknown name is an invalid argument that lists the ones spelled like it.
Result<CatalogueFile> builtin_model(std::string_view name);

}  // namespace sluice

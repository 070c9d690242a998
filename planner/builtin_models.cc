#include "planner/builtin_models.h"

#include "planner/near_names.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace sluice {

Result<CatalogueFile> builtin_model(std::string_view name) {
    std::vector<std::string_view> names;
    for (const BuiltinModel& model : builtin_models()) {
        if (model.name == name) {
            return parse_catalogue_file(model.json, std::string(name));
        }
        names.push_back(model.name);
    }
    return invalid_argument(
        fmt::format("no model named {}{}; known are {}; or give a catalogue file or a checkpoint directory", name,
                    near_names(name, names), fmt::join(names, ", ")));
}

}  // namespace sluice

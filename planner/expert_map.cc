#include "planner/expert_map.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include <charconv>

namespace sluice {

Result<ExpertMap> ExpertMap::parse(std::string_view json) {
    const auto refuse = [](const std::string& what) {
        return invalid_argument(fmt::format(
            "expert map: {}; give {{\"physical_to_logical\": {{\"LAYER\": [expert of slot 0, ...]}}}}", what));
    };
    const auto root = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
    if (!root.is_object() || root.size() != 1 || !root.contains("physical_to_logical")) {
        return refuse("it is no JSON object with the one key physical_to_logical");
    }
    const auto& by_layer = root["physical_to_logical"];
    if (!by_layer.is_object() || by_layer.empty()) {
        return refuse("physical_to_logical is no object with a list for each layer");
    }
    ExpertMap out;
    for (const auto& [key, slots] : by_layer.items()) {
        int layer = 0;
        const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
        if (error != std::errc() || stop != key.data() + key.size() || layer < 0 || key != std::to_string(layer)) {
            return refuse(fmt::format("'{}' is no number of a layer", key));
        }
        if (!slots.is_array() || slots.empty()) {
            return refuse(fmt::format("layer {} has no list of experts", layer));
        }
        std::vector<std::int64_t>& map = out.layers[layer];
        for (const auto& expert : slots) {
            if (!expert.is_number_integer()) {
                return refuse(fmt::format("layer {} names expert {}, which is no whole number", layer, expert.dump()));
            }
            map.push_back(expert.get<std::int64_t>());
        }
    }
    return out;
}

std::uint64_t ExpertMap::digest() const {
    std::string text;
    for (const auto& [layer, slots] : layers) {
        text += fmt::format("{}:{}", layer, fmt::join(slots, ","));
        text += ';';
    }
    return XXH3_64bits(text.data(), text.size());
}

Status check_expert_slots(const std::vector<std::int64_t>& map, int layer, std::int64_t experts, std::int64_t slots) {
    if (static_cast<std::int64_t>(map.size()) != slots) {
        return invalid_argument(
            fmt::format("expert map: layer {} has {} slots, but {} experts and {} redundant ones "
                        "make {}; give one expert for each",
                        layer, map.size(), experts, slots - experts, slots));
    }
    std::vector<bool> placed(static_cast<std::size_t>(experts), false);
    for (const std::int64_t expert : map) {
        if (expert < 0 || expert >= experts) {
            return invalid_argument(
                fmt::format("expert map: layer {} names expert {}, but the model has {}", layer, expert, experts));
        }
        placed[static_cast<std::size_t>(expert)] = true;
    }
    for (std::int64_t expert = 0; expert < experts; ++expert) {
        if (!placed[static_cast<std::size_t>(expert)]) {
            return invalid_argument(
                fmt::format("expert map: layer {} has no slot for expert {}; every expert needs one", layer, expert));
        }
    }
    return ok_status();
}

}  // namespace sluice

#include "planner/catalogue_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace sluice {

namespace {

using nlohmann::json;

constexpr std::int64_t kMostTensors = 10'000'000;
constexpr int kDeepestJson = 64;

void replace_all(std::string& text, std::string_view what, const std::string& by) {
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
        text.replace(at, what.size(), by);
    }
}

/// `layers` of a pattern: a pair of first and last layer; `experts`: a count. Null or missing = not repeated.
Result<std::pair<std::int64_t, std::int64_t>> repeats(const json& pattern, const char* key) {
    const auto found = pattern.find(key);
    if (found == pattern.end() || found->is_null()) {
        return std::pair<std::int64_t, std::int64_t>{0, -1};
    }
    if (found->is_number_integer() && *found >= 1 && *found <= kMostTensors) {
        return std::pair<std::int64_t, std::int64_t>{0, found->get<std::int64_t>() - 1};
    }
    if (found->is_array() && found->size() == 2 && (*found)[0].is_number_integer() && (*found)[1].is_number_integer() &&
        (*found)[0] >= 0 && (*found)[0] <= (*found)[1] && (*found)[1] <= kMostTensors) {
        return std::pair{(*found)[0].get<std::int64_t>(), (*found)[1].get<std::int64_t>()};
    }
    return invalid_argument(
        fmt::format("{} is {}, it must be null, a count, or a pair of first and last", key, found->dump()));
}

std::optional<Dims> parse_shape(const json& pattern) {
    const auto found = pattern.find("shape");
    if (found == pattern.end() || !found->is_array()) {
        return std::nullopt;
    }
    Dims shape;
    for (const json& size : *found) {
        if (!size.is_number_integer() || size < 0) {
            return std::nullopt;
        }
        shape.push_back(size.get<std::int64_t>());
    }
    return shape;
}

std::optional<std::string> text_of(const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
}

Status expand(const json& pattern, std::vector<CatalogueTensor>& tensors) {
    const std::optional<std::string> name = pattern.is_object() ? text_of(pattern, "pattern") : std::nullopt;
    if (!name) {
        return invalid_argument("it needs a \"pattern\" of text");
    }
    const std::optional<Dims> shape = parse_shape(pattern);
    const std::optional<std::string> dtype_name = text_of(pattern, "dtype");
    const std::optional<DType> dtype = dtype_name ? parse_dtype(*dtype_name) : std::nullopt;
    if (!shape || !dtype) {
        return invalid_argument(fmt::format("{} needs a \"shape\" of sizes and a known \"dtype\"", *name));
    }
    SLUICE_ASSIGN_OR_RETURN(const auto layers, repeats(pattern, "layers"));
    SLUICE_ASSIGN_OR_RETURN(const auto experts, repeats(pattern, "experts"));
    const bool per_layer = layers.second >= layers.first;
    const bool per_expert = experts.second >= experts.first;
    if (per_layer != (name->find("{L}") != std::string::npos) ||
        per_expert != (name->find("{E}") != std::string::npos)) {
        return invalid_argument(fmt::format("{}: the pattern and its layers and experts do not agree", *name));
    }
    for (std::int64_t layer = layers.first; layer <= std::max(layers.first, layers.second); ++layer) {
        for (std::int64_t expert = experts.first; expert <= std::max(experts.first, experts.second); ++expert) {
            if (tensors.size() >= static_cast<std::size_t>(kMostTensors)) {
                return invalid_argument(fmt::format("{}: more than {} tensors", *name, kMostTensors));
            }
            CatalogueTensor tensor{*name, *dtype, *shape, 0, text_of(pattern, "tied_to").value_or("")};
            replace_all(tensor.name, "{L}", std::to_string(layer));
            replace_all(tensor.name, "{E}", std::to_string(expert));
            tensors.push_back(std::move(tensor));
        }
    }
    return ok_status();
}

Status expand_list(const json& object, const char* key, std::vector<CatalogueTensor>& tensors) {
    const auto found = object.find(key);
    if (found == object.end()) {
        return ok_status();
    }
    if (!found->is_array()) {
        return invalid_argument(fmt::format("{} is no list", key));
    }
    for (std::size_t i = 0; i < found->size(); ++i) {
        if (Status status = expand((*found)[i], tensors); !status.ok()) {
            return status.with_context(fmt::format("{}[{}]", key, i));
        }
    }
    return ok_status();
}

Result<CatalogueFile> parse(std::string_view text) {
    // The depth is bounded first, since the parser of nlohmann-json builds what it reads by recursion when it is freed.
    int depth = 0;
    const json::parser_callback_t bounded = [&depth](int level, json::parse_event_t /*event*/, json& /*value*/) {
        depth = std::max(depth, level);
        return level <= kDeepestJson;
    };
    const json file = json::parse(text, bounded, /*allow_exceptions=*/false);
    if (file.is_discarded() || !file.is_object() || depth > kDeepestJson) {
        return invalid_argument("no JSON object (syntax, or nested too deep)");
    }
    const std::optional<std::string> architecture = text_of(file, "architecture");
    const auto config = file.find("config");
    if (!architecture || config == file.end()) {
        return invalid_argument("no catalogue: it needs \"architecture\" and \"config\"");
    }
    CatalogueFile result;
    result.name = text_of(file, "name").value_or(*architecture);
    SLUICE_ASSIGN_OR_RETURN(result.config, ModelConfig::create(*config, *architecture));
    SLUICE_RETURN_IF_ERROR(expand_list(file, "checkpoint_tensors", result.checkpoint_tensors));
    if (const auto published = file.find("published"); published != file.end() && published->is_object()) {
        SLUICE_RETURN_IF_ERROR(expand_list(*published, "tensors", result.published_tensors));
    }
    return result;
}

}  // namespace

Result<CatalogueFile> parse_catalogue_file(std::string_view text, const std::string& origin) {
    Result<CatalogueFile> result = parse(text);
    if (!result.ok()) {
        return result.status().with_context(origin);
    }
    return result;
}

}  // namespace sluice

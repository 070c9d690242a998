#include "planner/model_config.h"

#include "planner/near_names.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

namespace sluice {

namespace {

using Json = nlohmann::json;

const Json* member(const Json& object, std::string_view key) {
    if (!object.is_object()) {
        return nullptr;
    }
    const auto found = object.find(std::string(key));
    return found == object.end() ? nullptr : &*found;
}

/// The object that holds the last part of `key`, and that part.
struct Place {
    const Json* object;
    std::string_view key;
};

Place locate(const Json& config, std::string_view key) {
    if (key.find('.') == std::string_view::npos) {
        // What the text model does not say itself (the dtype, often) holds for the whole model.
        const Json* text = member(config, "text_config");
        return {text != nullptr && member(*text, key) != nullptr ? text : &config, key};
    }
    const Json* object = &config;
    for (std::size_t dot = key.find('.'); object != nullptr && dot != std::string_view::npos; dot = key.find('.')) {
        object = member(*object, key.substr(0, dot));
        key.remove_prefix(dot + 1);
    }
    return {object, key};
}

const char* kind_of(const Json& value) {
    switch (value.type()) {
        case Json::value_t::number_integer:
        case Json::value_t::number_unsigned:
            return "an integer";
        case Json::value_t::number_float:
            return "a number";
        case Json::value_t::boolean:
            return "true or false";
        case Json::value_t::array:
            return "a JSON array";
        case Json::value_t::object:
            return "a JSON object";
        default:
            return "text";
    }
}

std::optional<Json> parse_as(const Json& old, std::string_view text) {
    if (old.is_string()) {
        return Json(std::string(text));
    }
    Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (old.is_null()) {
        return value.is_discarded() ? Json(std::string(text)) : value;
    }
    const bool fits = old.is_number_integer() ? value.is_number_integer()
                      : old.is_number()       ? value.is_number()
                                              : value.type() == old.type();
    return fits ? std::optional(value) : std::nullopt;
}

}  // namespace

Result<ModelConfig> ModelConfig::create(Json config, std::string architecture) {
    if (!config.is_object()) {
        return invalid_argument(fmt::format("a model's config is a JSON object, this is {}", config.type_name()));
    }
    if (architecture.empty()) {
        const Json* list = member(config, "architectures");
        if (list == nullptr || !list->is_array() || list->empty() || !list->front().is_string()) {
            return invalid_argument("config names no architecture; it needs \"architectures\": [\"...\"]");
        }
        architecture = list->front().get<std::string>();
    }
    ModelConfig result;
    result.config_ = std::move(config);
    result.architecture_ = std::move(architecture);
    return result;
}

Status ModelConfig::set(std::string_view key, std::string_view value) {
    const Place place = locate(config_, key);
    const Json* old = place.object == nullptr ? nullptr : member(*place.object, place.key);
    if (old == nullptr) {
        const Json* text = member(config_, "text_config");
        const Json& keys = place.object != nullptr && key != place.key ? *place.object
                           : text != nullptr                           ? *text
                                                                       : config_;
        std::vector<std::string_view> names;
        if (keys.is_object()) {
            for (auto it = keys.begin(); it != keys.end(); ++it) {
                names.emplace_back(it.key());
            }
        }
        return invalid_argument(fmt::format("--set {}: the config of {} has no such key{}", key, architecture_,
                                            near_names(place.key, names)));
    }
    std::optional<Json> parsed = parse_as(*old, value);
    if (!parsed) {
        return invalid_argument(fmt::format("--set {}={}: the value must be {}, as in the config ({})", key, value,
                                            kind_of(*old), old->dump()));
    }
    const_cast<Json&>(*old) =
        std::move(*parsed);  // NOLINT(cppcoreguidelines-pro-type-const-cast): found in our own config_
    return ok_status();
}

const Json* ModelConfig::find(std::string_view key) const {
    const Place place = locate(config_, key);
    return place.object == nullptr ? nullptr : member(*place.object, place.key);
}

Result<std::int64_t> ModelConfig::integer(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) {
        return invalid_argument(
            fmt::format("config of {} has no {}; it decides shapes and must be there", architecture_, key));
    }
    if (!value->is_number_integer() || *value <= 0) {
        return invalid_argument(
            fmt::format("config of {}: {} is {}, it must be a positive integer", architecture_, key, value->dump()));
    }
    return value->get<std::int64_t>();
}

std::int64_t ModelConfig::integer_or(std::string_view key, std::int64_t fallback) const {
    const Json* value = find(key);
    return value != nullptr && value->is_number_integer() ? value->get<std::int64_t>() : fallback;
}

bool ModelConfig::flag_or(std::string_view key, bool fallback) const {
    const Json* value = find(key);
    return value != nullptr && value->is_boolean() ? value->get<bool>() : fallback;
}

Result<DType> ModelConfig::dtype() const {
    for (const char* key : {"torch_dtype", "dtype"}) {
        const Json* value = find(key);
        if (value == nullptr || value->is_null() || *value == "auto") {
            continue;
        }
        if (value->is_string()) {
            if (const std::optional<DType> parsed = parse_torch_dtype(value->get_ref<const std::string&>())) {
                return *parsed;
            }
        }
        std::string known;
        for (int i = 0; i < kDTypeCount; ++i) {
            if (is_floating(static_cast<DType>(i))) {
                known += fmt::format("{}{}", known.empty() ? "" : ", ", torch_name(static_cast<DType>(i)));
            }
        }
        return invalid_argument(fmt::format("config of {}: {} is {}, which is no dtype; known are {}", architecture_,
                                            key, value->dump(-1, ' ', false, Json::error_handler_t::replace), known));
    }
    return DType::kBF16;
}

}  // namespace sluice

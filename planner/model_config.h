#pragma once

#include "planner/catalogue.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

/// The part of config.json that decides names and shapes. A plain value.
/// A key without a dot means the text model: it is looked up in "text_config" when there is one, else at the top; a
/// dotted key is a path from the top.
class ModelConfig {
public:
    /// Takes a config.json object; `architecture` is its architectures[0] when not given.
    static Result<ModelConfig> create(nlohmann::json config, std::string architecture = "");

    [[nodiscard]] const std::string& architecture() const { return architecture_; }
    [[nodiscard]] const nlohmann::json& json() const { return config_; }

    /// `--set key=value`: replaces an existing key by a value of the same type. Unknown key or wrong type: invalid argument.
    Status set(std::string_view key, std::string_view value);

    /// The value of `key`, or null when there is none.
    [[nodiscard]] const nlohmann::json* find(std::string_view key) const;
    [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
    /// A positive integer, or invalid argument naming the key.
    [[nodiscard]] Result<std::int64_t> integer(std::string_view key) const;
    /// For keys that may be missing or null; a value of another type counts as missing (checkpoint_catalogue refuses it).
    [[nodiscard]] std::int64_t integer_or(std::string_view key, std::int64_t fallback) const;
    [[nodiscard]] bool flag_or(std::string_view key, bool fallback) const;
    /// The worker's dtype: torch_dtype or dtype; bf16 where neither is there or says more than "auto". Invalid argument for a name that is
    /// not known.
    [[nodiscard]] Result<DType> dtype() const;

private:
    nlohmann::json config_;
    std::string architecture_;
};

/// In which form the weights of a model are given.
enum class WeightForm : std::uint8_t {
    kCheckpoint,  ///< As a trainer holds and exports them: bf16, and f32 where the model keeps f32.
    kPublished,   ///< As on disk where that differs: fp8 with block scales, mxfp4, layers of a draft model.
};

/// The checkpoint tensors of a config: one function per architecture (see planner/architectures/), tested equal to the
/// catalogues in models/. Unknown architectures and impossible sizes are invalid arguments.
Result<Catalogue> checkpoint_catalogue(const ModelConfig& config, WeightForm form = WeightForm::kCheckpoint);

}  // namespace sluice

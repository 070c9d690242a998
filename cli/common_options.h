#pragma once

#include "cli/model_source.h"
#include "planner/layout.h"
#include "planner/router.h"
#include "planner/trainer_ownership.h"
#include "runtime/base/settings.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace sluice::cli {

/// The options of `plan` and `sync` that say what moves from whom to whom, as they were given. Parsed by the functions below, which
/// name the option in their errors.
struct LayoutOptions {
    std::string model;
    std::vector<std::string> sets;
    std::string weights = "checkpoint";
    std::string trainer;
    std::vector<std::string> workers;
    std::vector<std::string> expert_maps;
    std::string source = "resident";
    std::string path = "auto";
    std::string chunk_bytes;

    /// Adds them to a command. `this` must outlive the parse.
    void add_to(CLI::App& command);

    [[nodiscard]] ModelChoice model_choice() const;
    [[nodiscard]] Result<TrainerLayout> trainer_layout() const;
    /// With the expert maps, whose files are read.
    [[nodiscard]] Result<std::vector<WorkerLayout>> worker_layouts() const;
    [[nodiscard]] SourceKind source_kind() const;
    /// What was not given is as the settings say.
    [[nodiscard]] Result<RouteOptions> route_options(const Settings& settings) const;
};

/// "--credit 3": a whole number from `least` to 2^31 - 1.
Result<int> parse_count(const char* option, const std::string& text, int least);
/// "--staging 64M".
Result<std::int64_t> parse_size(const char* option, const std::string& text, std::int64_t least);
/// "RANK:VALUE" with RANK >= 0 and VALUE from `least` to `most`.
Result<std::pair<int, int>> parse_rank_value(const char* option, const std::string& text, int least, int most);

}  // namespace sluice::cli

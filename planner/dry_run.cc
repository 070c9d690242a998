#include "planner/dry_run.h"

#include "planner/loaders/load_context.h"

#include <fmt/format.h>

namespace sluice {

Result<Demand> dry_run(const Catalogue& catalogue, const ModelConfig& config, const WorkerLayout& layout, int pool_rank,
                       const Loader& loader) {
    if (pool_rank < 0 || pool_rank >= layout.pool_size()) {
        return invalid_argument(fmt::format("pool rank {} is not in [0, {})", pool_rank, layout.pool_size()));
    }
    Recorder recorder(catalogue);
    try {
        LoadContext context(recorder, config, layout, pool_rank);
        loader(context);
        context.check_expert_map_used();
    } catch (const RecordingRefused& refused) {
        return refused.status().with_context(fmt::format("worker rank {}", pool_rank));
    }
    return recorder.take_demand();
}

Result<Demand> dry_run(const Catalogue& catalogue, const ModelConfig& config, const WorkerLayout& layout, int pool_rank,
                       const LoaderTable& loaders) {
    const auto found = loaders.find(config.architecture());
    if (found == loaders.end()) {
        std::string known;
        for (const auto& [name, loader] : loaders) {
            known += known.empty() ? name : ", " + name;
        }
        return invalid_argument(
            fmt::format("architecture {} has no loader; known are {}", config.architecture(), known));
    }
    return dry_run(catalogue, config, layout, pool_rank, found->second);
}

Result<Demand> dry_run(const Catalogue& catalogue, const ModelConfig& config, const WorkerLayout& layout,
                       int pool_rank) {
    return dry_run(catalogue, config, layout, pool_rank, built_in_loaders());
}

}  // namespace sluice

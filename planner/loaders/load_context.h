#pragma once

#include "planner/layout.h"
#include "planner/model_config.h"
#include "planner/recording_tensor.h"

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// One piece of something that is cut into `count` equal pieces.
struct Split {
    std::int64_t count = 1;
    std::int64_t rank = 0;

    /// size / count. Refuses a remainder, naming `what` ("parameter x: 30 rows").
    [[nodiscard]] std::int64_t piece(std::int64_t size, std::string_view what) const;
};

/// What a loader works with: the model's config, the place of this worker, the checkpoint tensors (without data) and
/// the parameters it declares. Only tensors that the loader asks for are pulled. Everything that goes wrong throws
/// RecordingRefused, so that a loader reads as a list of what it does.
class LoadContext {
public:
    /// Refuses a config whose dtype is not known.
    LoadContext(Recorder& recorder, const ModelConfig& config, const WorkerLayout& layout, int pool_rank);

    [[nodiscard]] const ModelConfig& config() const { return config_; }
    /// A positive integer of the config.
    [[nodiscard]] std::int64_t integer(std::string_view key) const;
    [[nodiscard]] std::int64_t integer_or(std::string_view key, std::int64_t fallback) const {
        return config_.integer_or(key, fallback);
    }
    [[nodiscard]] bool flag_or(std::string_view key, bool fallback) const { return config_.flag_or(key, fallback); }
    /// The dtype of the worker's parameters unless a rule says otherwise.
    [[nodiscard]] DType dtype() const { return dtype_; }

    [[nodiscard]] const WorkerLayout& layout() const { return layout_; }
    /// The layout's map of the layer whose experts are at `path` ("model.layers.3.mlp.experts."), or nothing: the initial map.
    /// Refuses a map that does not place `experts` experts in `slots` slots.
    [[nodiscard]] const std::vector<std::int64_t>* expert_slots(std::string_view path, std::int64_t experts,
                                                                std::int64_t slots);
    /// Refuses a map of layers for which nothing asked: they have no experts.
    void check_expert_map_used() const;
    /// Attention, dense layers, vocabulary: cut over the tensor-parallel ranks.
    [[nodiscard]] Split tp() const { return {layout_.tp, pool_rank_ % layout_.tp}; }
    /// All ranks of a replica (tp * dp): what experts are spread over (ep on) or cut by (ep off).
    [[nodiscard]] Split pool() const { return {layout_.pool_size(), pool_rank_}; }

    [[nodiscard]] const Catalogue& catalogue() const { return recorder_.catalogue(); }
    [[nodiscard]] bool has(std::string_view tensor) const { return recorder_.has(tensor); }
    /// A checkpoint tensor; refuses one that is missing, or has another shape than `shape`.
    [[nodiscard]] RecordingTensor tensor(std::string_view name) const { return recorder_.tensor(name); }
    [[nodiscard]] RecordingTensor tensor(std::string_view name, const Dims& shape) const;

    RecordingParameter parameter(std::string name, const Dims& shape) {
        return parameter(std::move(name), shape, dtype_);
    }
    RecordingParameter parameter(std::string name, const Dims& shape, DType dtype) {
        return recorder_.add_parameter(std::move(name), dtype, shape);
    }
    /// A tensor that belongs to the worker alone and is never written by a sync.
    void buffer(std::string name, const Dims& shape, DType dtype) {
        recorder_.add_buffer(std::move(name), dtype, shape);
    }

private:
    Recorder& recorder_;
    const ModelConfig& config_;
    const WorkerLayout& layout_;
    int pool_rank_;
    DType dtype_;
    std::set<int> mapped_layers_;
};

/// Declares a worker's parameters and copies the checkpoint tensors into them.
using Loader = std::function<void(LoadContext&)>;
/// Loaders by architecture name ("Qwen3ForCausalLM").
using LoaderTable = std::map<std::string, Loader, std::less<>>;

/// The architectures that Sluice knows. Add to the copy, and give it to dry_run, for more.
LoaderTable built_in_loaders();

/// dry_run with a loader of one's own, and with a table of one's own.
Result<Demand> dry_run(const Catalogue& catalogue, const ModelConfig& config, const WorkerLayout& layout, int pool_rank,
                       const Loader& loader);
Result<Demand> dry_run(const Catalogue& catalogue, const ModelConfig& config, const WorkerLayout& layout, int pool_rank,
                       const LoaderTable& loaders);

}  // namespace sluice

#pragma once

#include "bench/raw_get.h"
#include "cli/model_source.h"
#include "cli/trainer_weights.h"
#include "cli/weight_values.h"
#include "planner/demand.h"
#include "planner/ownership.h"
#include "planner/plan.h"
#include "planner/router.h"
#include "runtime/base/settings.h"
#include "runtime/base/status.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/exchange/session.h"
#include "runtime/services/buffer.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace sluice::bench {

/// What a worker measured, in seconds, repetition by repetition: a raw get and a memcpy of as many bytes beside each pull.
struct PullTimings {
    std::vector<double> raw, copy, pull;
    std::vector<double> cpu;      ///< All threads of the worker's process during the pull.
    std::vector<double> raw_cpu;  ///< The transport thread during the raw get.
    std::int64_t bytes = 0;
    std::set<Path> paths;  ///< What the plan chose.
};

/// A trainer that holds a model (rank 0) and a worker that pulls from it (rank 1), over and over. Collective.
class PullPair {
public:
    struct Options {
        int repetitions = 5;  ///< One more warms up.
        bool digest = false;
    };

    /// All of the ownership must be in segment 0. `bootstrap` and `model` outlive it.
    PullPair(const Options& options, Settings settings, Bootstrap& bootstrap, const cli::Model& model,
             Ownership ownership);

    Status prepare();
    /// Moves what `demand` asks for by `path`, and compares every byte of the last repetition. On the trainer the timings are empty but for
    /// the bytes.
    Result<PullTimings> run(const Demand& demand, RouteOptions::PathChoice path);
    /// On the worker, before it is destroyed, and before the trainer's.
    void close() { raw_.reset(); }
    Status together() { return bootstrap_.barrier(deadline()); }

    [[nodiscard]] bool trainer() const { return bootstrap_.rank() == 0; }
    [[nodiscard]] transport::LinkInfo link() const { return raw_->link(); }

private:
    [[nodiscard]] Deadline deadline() const { return Deadline::after(settings_.sync_timeout); }
    Status serve(Session& session, const RouteOptions& route);
    Status pull(Session& session, const RouteOptions& route, const Demand& demand, PullTimings& timings);

    Options options_;
    Settings settings_;
    Bootstrap& bootstrap_;
    const cli::Model& model_;
    cli::WeightValues values_;
    Ownership ownership_;
    std::optional<cli::TrainerWeights> weights_;
    std::optional<Buffer> copy_source_;  ///< The trainer's memory, mapped: memcpy reads the bytes that are pulled.
    std::optional<Buffer> target_;
    std::unique_ptr<RawGet> raw_;
};

}  // namespace sluice::bench

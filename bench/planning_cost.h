#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/layout.h"
#include "planner/model_config.h"
#include "planner/ownership.h"
#include "planner/plan.h"
#include "planner/router.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice::bench {

/// CPU time of this thread in seconds: planning is one thread and waits for nothing, and a busy machine must not matter.
double cpu_seconds();

/// A model at full size and the ranks of a cluster: what is planned. Ends the program when the text makes no sense.
struct Cluster {
    ModelConfig config;
    Catalogue catalogue;
    TrainerLayout trainers;
    WorkerLayout workers;
    std::vector<Ownership> owners;

    /// `layers` > 0 changes the model's number of layers.
    Cluster(const std::string& model, int layers, const std::string& trainer, const std::string& worker);

    /// What the worker of that pool rank wants, proven.
    [[nodiscard]] Demand proven_demand(int pool_rank) const;
    /// The request of that pool rank: one rank per replica.
    [[nodiscard]] DemandRequest request(const Demand& demand, int pool_rank) const;
    /// Records, coverage and chunks of one worker.
    [[nodiscard]] Plan plan_one(int pool_rank) const;
    /// The same for all workers.
    struct Whole {
        std::vector<Demand> demands;
        Plan plan;
    };
    [[nodiscard]] Whole plan_all() const;
};

/// The largest message of a compiled plan that one rank gets, in bytes.
std::size_t largest_message(const Plan& plan, int trainers);

}  // namespace sluice::bench

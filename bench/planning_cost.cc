#include "bench/planning_cost.h"

#include "planner/builtin_models.h"
#include "planner/coverage.h"
#include "planner/dry_run.h"
#include "planner/plan_codec.h"
#include "planner/trainer_ownership.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

namespace sluice::bench {
namespace {

[[noreturn]] void give_up(const Status& status) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::abort();
}

template <class Value>
Value need(Result<Value> result) {
    if (!result.ok()) {
        give_up(result.status());
    }
    return std::move(*result);
}

ModelConfig config_of(const std::string& model, int layers) {
    ModelConfig config = need(builtin_model(model)).config;
    if (layers > 0) {
        if (const Status status = config.set("num_hidden_layers", std::to_string(layers)); !status.ok()) {
            give_up(status);
        }
    }
    return config;
}

}  // namespace

double cpu_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Cluster::Cluster(const std::string& model, int layers, const std::string& trainer, const std::string& worker)
    : config(config_of(model, layers)),
      catalogue(need(checkpoint_catalogue(config))),
      trainers(need(TrainerLayout::parse(trainer))),
      workers(need(WorkerLayout::parse(worker))) {
    for (int rank = 0; rank < trainers.world_size(); ++rank) {
        owners.push_back(need(trainer_ownership(catalogue, config, trainers, rank, SourceKind::kResident)));
    }
}

Demand Cluster::proven_demand(int pool_rank) const {
    Demand demand = need(dry_run(catalogue, config, workers, pool_rank));
    if (const DemandCoverage coverage = prove_coverage(demand); !coverage.status.ok()) {
        give_up(coverage.status);
    }
    return demand;
}

DemandRequest Cluster::request(const Demand& demand, int pool_rank) const {
    DemandRequest out;
    out.demand = &demand;
    for (int replica = 0; replica < workers.replicas; ++replica) {
        out.workers.push_back(replica * workers.pool_size() + pool_rank);
    }
    return out;
}

Plan Cluster::plan_one(int pool_rank) const {
    const Demand demand = proven_demand(pool_rank);
    const DemandRequest one = request(demand, pool_rank);
    return need(route(catalogue, owners, {&one, 1}, {}));
}

Cluster::Whole Cluster::plan_all() const {
    Whole out;
    for (int rank = 0; rank < workers.pool_size(); ++rank) {
        out.demands.push_back(proven_demand(rank));
    }
    std::vector<DemandRequest> requests;
    for (int rank = 0; rank < workers.pool_size(); ++rank) {
        requests.push_back(request(out.demands[static_cast<std::size_t>(rank)], rank));
    }
    out.plan = need(route(catalogue, owners, requests, {}));
    return out;
}

std::size_t largest_message(const Plan& plan, int trainers) {
    std::size_t largest = 0;
    for (const Route& route : plan.routes) {
        largest = std::max(largest, encode_route(route).size());
    }
    for (const OwnerRoute& route : owner_routes(plan, trainers)) {
        largest = std::max(largest, encode_owner_route(route).size());
    }
    return largest;
}

}  // namespace sluice::bench

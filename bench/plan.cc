// What planning costs: one worker, a whole cluster, and how both grow with tensors and ranks. `time/tensor` and `time/rank`
// must not rise down a table.
#include "bench/planning_cost.h"
#include "planner/coverage.h"
#include "planner/dry_run.h"

#include <benchmark/benchmark.h>

#include <string>

namespace sluice::bench {
namespace {

constexpr const char* kTrainer = "tp=8,pp=8,dp=4,ep=32";
constexpr const char* kWorker = "tp=32,ep=on,replicas=4";
constexpr const char* kCutExperts = "tp=32,ep=off,replicas=4";

void records(benchmark::State& state, const char* worker) {
    const Cluster cluster("Kimi-K2", 0, "tp=1", worker);
    for (auto _ : state) {
        benchmark::DoNotOptimize(dry_run(cluster.catalogue, cluster.config, cluster.workers, 0));
    }
}
BENCHMARK_CAPTURE(records, whole_experts, kWorker)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(records, cut_experts, kCutExperts)->Unit(benchmark::kMillisecond);

void coverage(benchmark::State& state, const char* worker) {
    const Cluster cluster("Kimi-K2", 0, "tp=1", worker);
    const Demand demand = cluster.proven_demand(0);
    for (auto _ : state) {
        benchmark::DoNotOptimize(prove_coverage(demand));
    }
}
BENCHMARK_CAPTURE(coverage, whole_experts, kWorker)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(coverage, cut_experts, kCutExperts)->Unit(benchmark::kMillisecond);

// Records, coverage and chunks.
void one_worker(benchmark::State& state, const char* worker) {
    const Cluster cluster("Kimi-K2", 0, kTrainer, worker);
    for (auto _ : state) {
        benchmark::DoNotOptimize(cluster.plan_one(0));
    }
}
BENCHMARK_CAPTURE(one_worker, whole_experts, kWorker)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(one_worker, cut_experts, kCutExperts)->Unit(benchmark::kMillisecond);

void count(benchmark::State& state, const Cluster& cluster) {
    state.counters["tensors"] = static_cast<double>(cluster.catalogue.size());
    state.counters["trainers"] = cluster.trainers.world_size();
    state.counters["workers"] = cluster.workers.world_size();
}

void whole(benchmark::State& state, const Cluster& cluster) {
    for (auto _ : state) {
        benchmark::DoNotOptimize(cluster.plan_all());
    }
    count(state, cluster);
}

void whole_cluster(benchmark::State& state, const char* trainer, const char* worker) {
    const Cluster cluster("Kimi-K2", 0, trainer, worker);
    whole(state, cluster);
    state.counters["message"] =
        static_cast<double>(largest_message(cluster.plan_all().plan, cluster.trainers.world_size()));
}
BENCHMARK_CAPTURE(whole_cluster, 256_to_128, kTrainer, kWorker)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_cluster, 256_to_128_cut_experts, kTrainer, kCutExperts)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_cluster, 512_to_512, "tp=8,pp=8,dp=8,ep=64", "tp=32,ep=on,replicas=16")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_cluster, 512_to_512_distinct, "tp=8,pp=8,dp=8,ep=64", "dp=128,ep=on,replicas=4")
    ->Unit(benchmark::kMillisecond);

// The argument is the number of layers: 10k to 80k tensors.
void growth_in_tensors(benchmark::State& state) {
    const Cluster cluster("Kimi-K2", static_cast<int>(state.range(0)), kTrainer, kWorker);
    whole(state, cluster);
    state.counters["time/tensor"] =
        benchmark::Counter(static_cast<double>(cluster.catalogue.size()),
                           benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(growth_in_tensors)->Arg(10)->Arg(18)->Arg(35)->Arg(70)->Unit(benchmark::kMillisecond);

// The argument is the number of trainer ranks. With everything that every rank adds: what it owns, and its share of the plan.
void growth_in_trainers(benchmark::State& state) {
    const auto ranks = static_cast<int>(state.range(0));
    const std::string trainer = "tp=2,pp=8,dp=" + std::to_string(ranks / 16) + ",ep=" + std::to_string(ranks / 8);
    for (auto _ : state) {
        const Cluster cluster("Kimi-K2", 0, trainer, kWorker);
        benchmark::DoNotOptimize(cluster.plan_all());
    }
    state.counters["time/rank"] =
        benchmark::Counter(ranks, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(growth_in_trainers)->RangeMultiplier(2)->Range(16, 512)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::bench

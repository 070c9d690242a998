// The limits of planning at cluster scale, in CPU time of one core. `bench_plan` gives the figures in detail.
#include "bench/planning_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <sys/resource.h>
#include <utility>
#include <vector>

namespace sluice::bench {
namespace {

constexpr const char* kTrainer = "tp=8,pp=8,dp=4,ep=32";
constexpr const char* kWorker = "tp=32,ep=on,replicas=4";

/// The least of several runs: what the work takes when nothing disturbs it.
template <class Work>
double least_seconds(int runs, const Work& work) {
    double least = 1e9;
    for (int i = 0; i < runs; ++i) {
        const double start = cpu_seconds();
        work();
        least = std::min(least, cpu_seconds() - start);
    }
    return least;
}

double peak_mib() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / 1024;
}

/// A table of growth: from its first line to its last one time may rise by 1.1 times what the size rises by. In between there
/// are steps where the processor's caches become too small.
class Growth {
public:
    explicit Growth(const char* what) { std::printf("%10s %10s %14s\n", what, "seconds", "us per one"); }
    void add(double size, double seconds) {
        std::printf("%10.0f %10.3f %14.2f\n", size, seconds, 1e6 * seconds / size);
        lines_.emplace_back(size, seconds);
    }
    void expect_linear() const {
        EXPECT_LE(lines_.back().second / lines_.front().second, 1.10 * lines_.back().first / lines_.front().first);
    }

private:
    std::vector<std::pair<double, double>> lines_;
};

TEST(PlanningScale, KimiK2From256TrainersTo128Workers) {
    const Cluster cluster("Kimi-K2", 0, kTrainer, kWorker);
    const double one = least_seconds(3, [&] { (void)cluster.plan_one(0); });
    const double all = least_seconds(1, [&] {
        const Cluster everything("Kimi-K2", 0, kTrainer, kWorker);  // catalogue and ownerships count, too
        EXPECT_LE(largest_message(everything.plan_all().plan, 256), 512U << 10);
    });
    std::printf("one worker %.1f ms, all %.2f s, peak %.0f MiB\n", 1e3 * one, all, peak_mib());
    EXPECT_LE(one, 0.100);
    EXPECT_LE(all, 5.0);
    EXPECT_LE(peak_mib(), 2048);
}

TEST(PlanningScale, OneWorkerWithCutExperts) {
    const Cluster cluster("Kimi-K2", 0, kTrainer, "tp=32,ep=off,replicas=4");
    const double records = least_seconds(3, [&] { (void)cluster.proven_demand(0); });
    const double one = least_seconds(3, [&] { (void)cluster.plan_one(0); });
    std::printf("one worker: records and coverage %.1f ms, with chunks %.1f ms\n", 1e3 * records, 1e3 * one);
    EXPECT_LE(records, 0.100);
    EXPECT_LE(one, 0.400);
}

TEST(PlanningScale, From512TrainersTo512Workers) {
    for (const char* worker : {"tp=32,ep=on,replicas=16", "dp=128,ep=on,replicas=4"}) {
        const double all = least_seconds(1, [&] {
            const Cluster cluster("Kimi-K2", 0, "tp=8,pp=8,dp=8,ep=64", worker);
            (void)largest_message(cluster.plan_all().plan, 512);
        });
        std::printf("%s: %.2f s\n", worker, all);
        EXPECT_LE(all, 30.0) << worker;
    }
}

TEST(PlanningScale, GrowthFrom10kTo80kTensors) {
    Growth growth("tensors");
    for (const int layers : {10, 18, 35, 70}) {
        const Cluster cluster("Kimi-K2", layers, kTrainer, kWorker);
        growth.add(static_cast<double>(cluster.catalogue.size()), least_seconds(5, [&] { (void)cluster.plan_all(); }));
    }
    growth.expect_linear();
}

TEST(PlanningScale, GrowthFrom16To512Trainers) {
    Growth growth("trainers");
    for (int ranks = 16; ranks <= 512; ranks *= 2) {
        const std::string trainer = "tp=2,pp=8,dp=" + std::to_string(ranks / 16) + ",ep=" + std::to_string(ranks / 8);
        growth.add(ranks, least_seconds(2, [&] { (void)Cluster("Kimi-K2", 0, trainer, kWorker).plan_all(); }));
    }
    growth.expect_linear();
}

}  // namespace
}  // namespace sluice::bench

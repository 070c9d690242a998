#pragma once

#include "planner/model_config.h"
#include "planner/trainer_ownership.h"

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

namespace sluice::test {

/// A trainer layout and how it offers its weights. "stages=*" stands for three stages of different lengths, whatever
/// the number of layers.
struct TrainerCase {
    std::string layout;
    SourceKind source = SourceKind::kResident;
};

/// The layouts of one model: each trainer serves each set of worker pools in a plan of its own.
struct LayoutPairs {
    std::string model;
    WeightForm form = WeightForm::kCheckpoint;
    std::vector<TrainerCase> trainers;
    std::vector<std::vector<std::string>> pools;
    /// Config fields that make the model small enough for every run of the tests.
    std::vector<std::pair<std::string, std::string>> shrunk;

    [[nodiscard]] std::string name() const;  ///< Letters, digits and underscores.
};
std::ostream& operator<<(std::ostream& out, const LayoutPairs& pairs);

/// Every catalogue, and the published forms that have other tensors (fp8 with scales, mxfp4); 20 pairs each or more.
std::vector<LayoutPairs> layout_pairs();

/// Plans pairs and checks them: coverage of every demand and of every route, pulled bytes against the formula, load of
/// the busiest trainer against the optimum. At full size all pairs (two in three of a model of very many tensors); else the shrunk model, one trainer per set of pools.
struct PairFigures {
    int pairs = 0;
    double worst_balance = 1;  ///< Busiest trainer over the optimum.
    std::string worst_pair;
};
PairFigures check_pairs(const LayoutPairs& pairs, bool full_size);

}  // namespace sluice::test

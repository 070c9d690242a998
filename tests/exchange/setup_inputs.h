#pragma once

#include "planner/builtin_models.h"
#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/dry_run.h"
#include "planner/gather.h"
#include "planner/trainer_ownership.h"
#include "runtime/exchange/rank_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

/// What the ranks of a small session put into the plan: tp=2 trainers that gather, and a tp=2 pool of two replicas.
namespace sluice::test {

inline ModelConfig small_dense_config(const std::string& layers = "2") {
    ModelConfig config = builtin_model("Qwen3-0.6B").value().config;
    for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{{"num_hidden_layers", layers},
                                                                                     {"hidden_size", "32"},
                                                                                     {"num_attention_heads", "4"},
                                                                                     {"num_key_value_heads", "2"},
                                                                                     {"head_dim", "8"},
                                                                                     {"vocab_size", "64"},
                                                                                     {"intermediate_size", "48"}}) {
        EXPECT_TRUE(config.set(key, value).ok()) << key;
    }
    return config;
}

struct SetupInputs {
    ModelConfig config = small_dense_config();
    Catalogue catalogue = checkpoint_catalogue(config).value();
    TrainerLayout trainer = TrainerLayout::parse("tp=2").value();
    WorkerLayout worker = WorkerLayout::parse("tp=2,replicas=2").value();
    RouteOptions route{.chunk_bytes = 1024, .direct_piece = 0};

    [[nodiscard]] RankInput trainer_input(int own_rank) const {
        RankInput input;
        input.trainer = true;
        input.own_rank = own_rank;
        input.ownership = trainer_ownership(catalogue, config, trainer, own_rank, SourceKind::kGathered).value();
        input.gather = RankInput::Gather{shard_ownership(catalogue, config, trainer, own_rank).value(),
                                         gather_demand(catalogue, config, trainer, own_rank).value()};
        return input;
    }
    [[nodiscard]] RankInput worker_input(int own_rank) const {
        RankInput input;
        input.own_rank = own_rank;
        input.demand_key = own_rank % worker.pool_size();
        input.demand = dry_run(catalogue, config, worker, input.demand_key).value();
        return input;
    }
    [[nodiscard]] RankInput input(int world_rank) const {
        return world_rank < 2 ? trainer_input(world_rank) : worker_input(world_rank - 2);
    }
    static constexpr int kRanks = 6;
};

}  // namespace sluice::test

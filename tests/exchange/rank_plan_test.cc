// The plan as the ranks of a session make it together, each on a thread, over the in-process bootstrap.
#include "runtime/exchange/rank_plan.h"

#include "runtime/exchange/agreement.h"
#include "runtime/exchange/bootstrap_in_process.h"
#include "tests/exchange/setup_inputs.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <thread>

namespace sluice::test {
namespace {

using Plans = std::vector<Result<RankPlan>>;

// Every rank compiles with what `input_of`, `catalogue_of` and `route_of` give it.
Plans compile(int ranks, const std::function<RankInput(int)>& input_of,
              const std::function<const Catalogue&(int)>& catalogue_of,
              const std::function<RouteOptions(int)>& route_of) {
    const auto bootstraps = in_process_bootstraps(ranks);
    Plans out(static_cast<std::size_t>(ranks), Result<RankPlan>(internal_error("not run")));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            const auto i = static_cast<std::size_t>(rank);
            out[i] = compile_rank_plan(*bootstraps[i], catalogue_of(rank), input_of(rank), route_of(rank),
                                       Deadline::after(std::chrono::seconds(20)));
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    return out;
}

Plans compile(int ranks, const std::function<RankInput(int)>& input_of,
              const std::function<const Catalogue&(int)>& catalogue_of, const RouteOptions& route) {
    return compile(ranks, input_of, catalogue_of, [&route](int) { return route; });
}

Plans compile(const SetupInputs& inputs, const std::function<RankInput(int)>& input_of) {
    return compile(
        SetupInputs::kRanks, input_of, [&](int) -> const Catalogue& { return inputs.catalogue; }, inputs.route);
}

void expect_all_refused(const Plans& plans, StatusCode code, const std::vector<std::string>& parts) {
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
        ASSERT_FALSE(plans[rank].ok()) << "rank " << rank;
        const Status status = plans[rank].status();
        EXPECT_EQ(status.code(), code) << status.message();
        for (const std::string& part : parts) {
            EXPECT_NE(status.message().find(part), std::string::npos)
                << "no '" << part << "' on rank " << rank << ": " << status.message();
        }
        EXPECT_EQ(status.message(), plans[0].status().message()) << "all ranks are told the same";
    }
}

std::int64_t bytes_of(const Route& route) {
    std::int64_t bytes = 0;
    for (const Chunk& chunk : route.chunks) {
        bytes += chunk.wire_bytes;
    }
    return bytes;
}

TEST(RankPlanTest, EveryRankGetsItsPartAndTheSidesFit) {
    const SetupInputs inputs;
    const Plans plans = compile(inputs, [&](int rank) { return inputs.input(rank); });
    std::set<std::uint64_t> sessions;
    std::int64_t pulled = 0;
    std::int64_t served = 0;
    for (const auto& plan : plans) {
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        sessions.insert(plan->session);
        EXPECT_EQ(plan->trainers, (std::vector<int>{0, 1}));
        EXPECT_EQ(plan->workers, (std::vector<int>{2, 3, 4, 5}));
        EXPECT_EQ(plan->fingerprint, plans[0]->fingerprint);
        EXPECT_GT(plan->wire_bytes, 0);
        pulled += bytes_of(plan->route);
        for (const ServedDemand& demand : plan->owner_route.demands) {
            for (const ServedChunk& chunk : demand.chunks) {
                served += chunk.wire_bytes * static_cast<std::int64_t>(demand.workers.size());
            }
        }
    }
    EXPECT_EQ(sessions.size(), 1u);
    EXPECT_GT(pulled, 0);
    EXPECT_EQ(pulled, served);
    // Replicas share a demand and so a route; each trainer gathers and serves a gather.
    EXPECT_EQ(plans[2]->route.workers, (std::vector<int>{0, 2}));
    EXPECT_EQ(plans[4]->route.workers, (std::vector<int>{0, 2}));
    EXPECT_EQ(bytes_of(plans[2]->route), bytes_of(plans[4]->route));
    EXPECT_EQ(plans[0]->group_order.size(), static_cast<std::size_t>(inputs.catalogue.groups()));
    EXPECT_EQ(plans[0]->group_order, plans[1]->group_order);
    EXPECT_FALSE(plans[0]->gather_route.chunks.empty());
    EXPECT_FALSE(plans[0]->gather_owner_route.demands.empty());
    for (const ServedDemand& demand : plans[0]->gather_owner_route.demands) {
        EXPECT_NE(demand.workers, std::vector<int>{0}) << "a rank copies its own shards itself";
    }
}

TEST(RankPlanTest, NoTwoSessionsShareANumber) {
    const SetupInputs inputs;
    const auto input_of = [&](int rank) { return inputs.input(rank); };
    EXPECT_NE(compile(inputs, input_of)[0]->session, compile(inputs, input_of)[0]->session);
}

TEST(RankPlanTest, AnotherCatalogueIsRefusedNamingTheRank) {
    const SetupInputs inputs;
    const Catalogue other = checkpoint_catalogue(small_dense_config("3")).value();
    for (const int odd : {1, 3}) {
        const Plans plans = compile(
            SetupInputs::kRanks, [&](int rank) { return inputs.input(rank); },
            [&](int rank) -> const Catalogue& { return rank == odd ? other : inputs.catalogue; }, inputs.route);
        expect_all_refused(plans, StatusCode::kInvalidArgument, {odd == 1 ? "trainer 1" : "worker 1", "catalogue"});
    }
}

TEST(RankPlanTest, AnotherCatalogueIsToldByItsFirstDifference) {
    // More tensors than one round of questions tells apart.
    std::vector<CatalogueTensor> tensors;
    for (int i = 0; i < 5000; ++i) {
        tensors.push_back({"model.layers.0.t" + std::to_string(i), DType::kBF16, {4, 8}, 0, {}});
    }
    const Catalogue base = Catalogue::create(tensors, 1).value();
    const SetupInputs inputs;
    const auto nothing_of_it = [&](int rank) {
        RankInput input = inputs.input(rank);
        input.ownership = {};
        input.gather.reset();
        return input;
    };
    const auto refused = [&](const std::vector<CatalogueTensor>& changed, const std::vector<std::string>& parts) {
        const Catalogue other = Catalogue::create(changed, 1).value();
        const Plans plans = compile(
            SetupInputs::kRanks, nothing_of_it, [&](int rank) -> const Catalogue& { return rank >= 2 ? other : base; },
            inputs.route);
        expect_all_refused(plans, StatusCode::kInvalidArgument, {"worker 0", "rank 0"});
        expect_all_refused(plans, StatusCode::kInvalidArgument, parts);
    };
    for (const std::size_t at : {0U, 63U, 64U, 2345U, 4999U}) {
        std::vector<CatalogueTensor> changed = tensors;
        changed[at].dtype = DType::kF32;
        refused(changed, {"tensor " + tensors[at].name + " has dtype bf16", "f32 in worker 0"});
        changed = tensors;
        changed[at].shape = {8, 4};
        refused(changed, {"tensor " + tensors[at].name + " has shape [4, 8]", "[8, 4] in worker 0"});
        changed = tensors;
        changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(at));
        refused(changed, {"tensor " + tensors[at].name + " is in rank 0 only"});
    }
    std::vector<CatalogueTensor> longer = tensors;
    longer.push_back({"model.layers.0.zz", DType::kBF16, {1}, 0, {}});
    refused(longer, {"tensor model.layers.0.zz is in worker 0 only"});
    refused({}, {"is in rank 0 only"});
}

TEST(RankPlanTest, ARanksOwnErrorReachesEverybody) {
    const SetupInputs inputs;
    for (int failed = 0; failed < SetupInputs::kRanks; ++failed) {
        const Plans plans = compile(inputs, [&](int rank) {
            RankInput input = inputs.input(rank);
            if (rank == failed) {
                input.status = Status(StatusCode::kResourceExhausted, "no memory for 5 GiB");
                input.demand.reset();
                input.ownership = {};
                input.gather.reset();
            }
            return input;
        });
        const std::string name =
            failed < 2 ? "trainer " + std::to_string(failed) : "worker " + std::to_string(failed - 2);
        expect_all_refused(plans, StatusCode::kResourceExhausted, {name, "no memory for 5 GiB"});
    }
}

// As with another expert map on its node: it would be given the other's weights.
TEST(RankPlanTest, AReplicaThatWantsOtherWeightsIsRefused) {
    const SetupInputs inputs;
    const Plans plans = compile(inputs, [&](int rank) {
        RankInput input = inputs.input(rank);
        if (rank == 4) {
            input.demand->records.pop_back();
        }
        return input;
    });
    expect_all_refused(plans, StatusCode::kInvalidArgument, {"worker 2", "worker 0", "replica", "--expert-map"});
}

TEST(RankPlanTest, WhatNobodyOwnsIsRefused) {
    const SetupInputs inputs;
    const Plans plans = compile(inputs, [&](int rank) {
        RankInput input = inputs.input(rank);
        if (rank < 2) {
            const TensorId missing = *inputs.catalogue.find("model.layers.1.self_attn.o_proj.weight");
            std::erase_if(input.ownership.regions, [&](const OwnedRegion& region) { return region.tensor == missing; });
        }
        return input;
    });
    expect_all_refused(plans, StatusCode::kPlanRefused, {"model.layers.1.self_attn.o_proj.weight"});
}

TEST(RankPlanTest, OtherChunkSizesAreRefusedNamingTheRank) {
    const SetupInputs inputs;
    for (const std::int64_t others : {std::int64_t{512}, std::int64_t{4096}}) {
        const Plans plans = compile(
            SetupInputs::kRanks, [&](int rank) { return inputs.input(rank); },
            [&](int) -> const Catalogue& { return inputs.catalogue; },
            [&](int rank) {
                RouteOptions route = inputs.route;
                route.chunk_bytes = rank < 2 ? route.chunk_bytes : others;
                return route;
            });
        expect_all_refused(plans, StatusCode::kInvalidArgument,
                           {"worker 0", std::to_string(others), "1024", "--chunk-bytes"});
    }
}

// Rank 0 is content with one demand of a replica; the replica that gave none cannot check its route.
TEST(RankPlanTest, APathThatStagedMemoryHasNotIsRefused) {
    using enum RouteOptions::PathChoice;
    SetupInputs inputs;
    for (const auto path : {kDirect, kMapped, kPacked, kAuto}) {
        inputs.route.path = path;
        const Plans plans = compile(inputs, [&](int rank) {
            RankInput input = inputs.input(rank);
            input.device_memory = input.trainer;
            return input;
        });
        if (path == kDirect || path == kMapped) {
            expect_all_refused(plans, StatusCode::kPlanRefused,
                               {path == kDirect ? "path direct" : "path mapped", "staged", "one side has host memory"});
        } else {
            ASSERT_TRUE(plans[0].ok()) << plans[0].status().message();
            EXPECT_TRUE(plans[0]->staged);
        }
    }
}

TEST(RankPlanTest, APartThatOneRankAloneRefusesIsRefusedByAll) {
    const SetupInputs inputs;
    const Plans plans = compile(inputs, [&](int rank) {
        RankInput input = inputs.input(rank);
        if (rank == 4) {
            input.demand.reset();
        }
        return input;
    });
    expect_all_refused(plans, StatusCode::kInternal, {"worker 2", "without its demand"});
}

TEST(RankPlanTest, RanksThatDoNotCountAreRefused) {
    const SetupInputs inputs;
    const Plans twice = compile(inputs, [&](int rank) {
        RankInput input = inputs.input(rank);
        input.own_rank = rank == 5 ? 2 : input.own_rank;
        return input;
    });
    expect_all_refused(twice, StatusCode::kInvalidArgument, {"worker rank 2", "world rank 5"});
    const Plans negative = compile(inputs, [&](int rank) {
        RankInput input = inputs.input(rank);
        input.own_rank = rank == 1 ? -1 : input.own_rank;
        return input;
    });
    expect_all_refused(negative, StatusCode::kInvalidArgument, {"trainer rank -1"});
}

TEST(RankPlanTest, AMissingRankIsNamedByTheDeadline) {
    const SetupInputs inputs;
    const auto bootstraps = in_process_bootstraps(2);
    const auto plan = compile_rank_plan(*bootstraps[0], inputs.catalogue, inputs.input(0), inputs.route,
                                        Deadline::after(std::chrono::milliseconds(50)));
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_NE(plan.status().message().find('1'), std::string::npos) << plan.status().message();
}

TEST(AgreementTest, TheLowestFailedRankIsNamed) {
    const auto bootstraps = in_process_bootstraps(4);
    const auto agree = [&](const std::function<Status(int)>& mine) {
        std::vector<Status> out(4);
        std::vector<std::thread> threads;
        for (std::size_t rank = 0; rank < 4; ++rank) {
            threads.emplace_back([&, rank] {
                out[rank] = agree_on_status(*bootstraps[rank], mine(static_cast<int>(rank)),
                                            Deadline::after(std::chrono::seconds(20)));
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        for (const Status& status : out) {
            EXPECT_EQ(status.message(), out[0].message());
        }
        return out[3];
    };
    EXPECT_TRUE(agree([](int) { return ok_status(); }).ok());
    const Status one =
        agree([](int rank) { return rank >= 2 ? plan_refused("because " + std::to_string(rank)) : ok_status(); });
    EXPECT_EQ(one.code(), StatusCode::kPlanRefused);
    EXPECT_EQ(one.message(), "rank 2: because 2");
    EXPECT_EQ(agree([](int) { return invalid_argument("--model: no such file"); }).message(), "--model: no such file")
        << "all say the same";
}

}  // namespace
}  // namespace sluice::test

#include "planner/router.h"

#include "planner/coverage.h"
#include "planner/dry_run.h"
#include "planner/group_order.h"
#include "planner/trainer_ownership.h"
#include "tests/planner/plan_execution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>

namespace sluice {
namespace {

using test::OwnerMemory;
using test::SmallModel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

struct World {
    std::vector<Ownership> owners;
    std::vector<Demand> demands;
    std::vector<DemandRequest> requests;
};

// Nothing when the engine or the trainer itself cannot have this layout.
std::optional<World> make_world(const SmallModel& model, const std::string& trainer, const std::string& worker,
                                SourceKind source = SourceKind::kResident) {
    World out;
    const TrainerLayout trainers = *TrainerLayout::parse(trainer);
    const WorkerLayout workers = *WorkerLayout::parse(worker);
    for (int rank = 0; rank < trainers.world_size(); ++rank) {
        auto owned = trainer_ownership(model.catalogue, model.config, trainers, rank, source);
        if (!owned.ok()) {
            return std::nullopt;
        }
        out.owners.push_back(std::move(*owned));
    }
    for (int rank = 0; rank < workers.pool_size(); ++rank) {
        auto demand = dry_run(model.catalogue, model.config, workers, rank);
        if (!demand.ok()) {
            return std::nullopt;
        }
        out.demands.push_back(std::move(*demand));
    }
    for (int rank = 0; rank < workers.pool_size(); ++rank) {
        DemandRequest request;
        request.demand = &out.demands[static_cast<std::size_t>(rank)];
        for (int replica = 0; replica < workers.replicas; ++replica) {
            request.workers.push_back(replica * workers.pool_size() + rank);
        }
        out.requests.push_back(std::move(request));
    }
    return out;
}

std::vector<OwnerMemory> fill(const SmallModel& model, const std::vector<Ownership>& owners) {
    std::vector<OwnerMemory> out;
    for (const Ownership& owner : owners) {
        out.push_back(test::fill_owner(model, owner));
    }
    return out;
}

std::int64_t wanted_bytes(const Demand& demand) {
    std::int64_t bytes = 0;
    for (const CopyRecord& r : demand.records) {
        bytes += r.copy.items() *
                 (r.converts() ? std::min(size_of(r.source_dtype), size_of(r.parameter_dtype)) : r.copy.item);
    }
    return bytes;
}

// Executes every route on real bytes and compares with the records applied to whole tensors.
void expect_right_bytes(const SmallModel& model, const World& world, const RouteOptions& options,
                        const std::string& what) {
    SCOPED_TRACE(what);
    const auto plan = route(model.catalogue, world.owners, world.requests, options);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const std::vector<OwnerMemory> memory = fill(model, world.owners);
    ASSERT_EQ(plan->routes.size(), world.demands.size());
    for (std::size_t d = 0; d < world.demands.size(); ++d) {
        const auto got = test::execute(plan->routes[d], world.demands[d], memory, options.chunk_bytes);
        const auto want = test::expected_parameters(model, world.demands[d]);
        for (std::size_t p = 0; p < want.size(); ++p) {
            EXPECT_EQ(got[p], want[p]) << "demand " << d << " parameter " << world.demands[d].parameters[p].name;
        }
        std::int64_t bytes = 0;
        for (const Chunk& chunk : plan->routes[d].chunks) {
            bytes += chunk.wire_bytes;
            for (const Piece& piece : chunk.pieces) {
                // Every alternate owns the same bytes of the same tensors; the owner itself is not among them.
                EXPECT_EQ(std::count(chunk.alternates.begin(), chunk.alternates.end(), chunk.owner), 0);
                EXPECT_GE(piece.copy.src_offset, 0);
            }
        }
        EXPECT_EQ(bytes, wanted_bytes(world.demands[d])) << "demand " << d;
    }
}

TEST(Route, GivesEveryParameterItsBytesForEveryArchitectureAndRandomLayouts) {
    std::mt19937 random(7);
    const std::vector<std::string> trainers = {"tp=1",
                                               "tp=2",
                                               "tp=4,pp=2",
                                               "tp=2,pp=2,dp=2,ep=4",
                                               "tp=4,ep=2,etp=2",
                                               "dp=4,ep=2,etp=2",
                                               "tp=2,dp=2,pp=2,etp=2",
                                               "fsdp=3",
                                               "fsdp=2,tp=2,dp=2",
                                               "tp=4,pp=2,format=megatron",
                                               "tp=8,dp=2,ep=4,etp=2,format=megatron",
                                               "tp=8,ep=8"};
    const std::vector<std::string> workers = {
        "tp=1", "tp=2", "tp=4", "tp=2,dp=2", "tp=2,ep=on,replicas=2", "tp=1,dp=4,ep=on", "tp=8"};
    int runs = 0;
    for (const auto& [name, model] : test::small_models()) {
        for (int i = 0; i < 4; ++i) {
            const std::string& trainer = trainers[random() % trainers.size()];
            const std::string& worker = workers[random() % workers.size()];
            const SourceKind source = random() % 2 == 0 ? SourceKind::kResident : SourceKind::kGathered;
            const auto world = make_world(model, trainer, worker, source);
            if (world) {
                ++runs;
                const std::int64_t sizes[] = {1 << 10, 3000, 64 << 10, 4 << 20};
                const RouteOptions options{sizes[random() % 4], RouteOptions::PathChoice::kAuto};
                expect_right_bytes(model, *world, options, name + ": " + trainer + " -> " + worker);
            }
        }
    }
    EXPECT_GE(runs, 20) << "too many layouts were refused for this to show anything";
}

// Experts that the trainer keeps apart in arrays of its own, read as parts of the fused checkpoint tensors, whole and cut.
TEST(Route, ReadsFusedExpertsFromMegatronArrays) {
    for (const char* name : {"Llama-4-Scout-17B-16E", "gpt-oss-20b"}) {
        const SmallModel model = test::small_model(name);
        for (const char* trainer :
             {"tp=1,format=megatron", "tp=2,pp=2,dp=2,ep=4,format=megatron", "tp=2,dp=2,etp=2,ep=2,format=megatron"}) {
            if (name == std::string("gpt-oss-20b") && std::string(trainer).find("etp") != std::string::npos) {
                continue;  // not defined for it: ownership_test
            }
            for (const char* worker : {"tp=1", "tp=4", "tp=2,dp=2,ep=on"}) {
                for (const SourceKind source : {SourceKind::kResident, SourceKind::kGathered}) {
                    const auto world = make_world(model, trainer, worker, source);
                    ASSERT_TRUE(world) << name << " " << trainer << " " << worker;
                    for (const std::int64_t chunk : {std::int64_t{1000}, std::int64_t{1} << 20}) {
                        expect_right_bytes(model, *world, {chunk, RouteOptions::PathChoice::kAuto},
                                           std::string(name) + ": " + trainer + " -> " + worker);
                    }
                }
            }
        }
    }
}

// Whatever walks a folded axis: any period, any step, any part of the axis, and several owners of parts that begin anywhere.
TEST(Route, ReadsFoldedAxesInAnySteps) {
    constexpr std::int64_t kColumns = 60;
    const SmallModel model = test::hand_made({{"w", DType::kBF16, {3, kColumns}, 0, {}}});
    std::mt19937 random(11);
    const auto below = [&](std::int64_t n) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
    };
    for (int i = 0; i < 300; ++i) {
        std::vector<Ownership> owners;
        for (std::int64_t begin = 0; begin < kColumns;) {
            const std::int64_t period = 2 + below(5);
            const std::int64_t left = kColumns - begin;
            const bool folds = left >= period;
            const std::int64_t extent = folds ? std::min(left / period, 1 + below(6)) * period : left;
            const std::int64_t places = extent / (folds ? period : 1);
            OwnedRegion region{0, Dims{0, begin}, Dims{3, begin + extent}, 0, 0, Dims{extent * 2, 2}};
            if (folds) {
                region.fold = {1, period, places * 2};
            }
            owners.push_back({{region}, {3 * extent * 2}, {}, 0});
            begin += extent;
        }
        // Columns first, first + step, ... as a view of the columns in two axes may ask for them.
        const std::int64_t step = 1 + below(7);
        const std::int64_t first = below(step);
        const std::int64_t count = 1 + below((kColumns - 1 - first) / step + 1);
        Demand demand;
        demand.parameters.push_back({"p", DType::kBF16, Dims{count, 3}});
        demand.records.push_back(
            {0, 0, DType::kBF16, DType::kBF16, {first * 2, 0, 2, {count, 3}, {step * 2, kColumns * 2}, {6, 2}}});
        World world;
        world.owners = owners;
        world.demands.push_back(demand);
        world.requests.push_back({&world.demands[0], {0}, {}});
        expect_right_bytes(model, world, {256, RouteOptions::PathChoice::kPacked}, "fold " + std::to_string(i));
    }
}

TEST(Route, GivesTheSameBytesForEveryChunkSizeAndPath) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    auto world = make_world(model, "tp=2,pp=2,dp=2,ep=4", "tp=4,ep=on");
    ASSERT_TRUE(world);
    for (DemandRequest& request : world->requests) {
        request.mapped_owners = {0, 1, 2, 3, 4, 5, 6, 7};
    }
    using Choice = RouteOptions::PathChoice;
    for (const Choice path : {Choice::kAuto, Choice::kDirect, Choice::kPacked, Choice::kMapped}) {
        for (const std::int64_t chunk :
             {kMinChunkBytes, std::int64_t{1000}, std::int64_t{1024}, std::int64_t{65536}, std::int64_t{1} << 40}) {
            expect_right_bytes(model, *world, {chunk, path}, "chunks of " + std::to_string(chunk));
        }
    }
}

// Owners that hold the same bytes elsewhere are alternates, and no mirrors.
TEST(Route, MirrorsHoldTheBytesAtTheSamePlace) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    auto world = make_world(model, "tp=2,dp=2", "tp=2");
    ASSERT_TRUE(world);
    const auto plan = route(model.catalogue, world->owners, world->requests, {});
    ASSERT_TRUE(plan.ok());
    std::size_t mirrored = 0;
    for (const Route& r : plan->routes) {
        for (const Chunk& chunk : r.chunks) {
            for (const int mirror : chunk.mirrors) {
                EXPECT_TRUE(std::count(chunk.alternates.begin(), chunk.alternates.end(), mirror) == 1);
                ++mirrored;
            }
        }
    }
    EXPECT_GT(mirrored, 0U);
    for (OwnedRegion& region : world->owners[2].regions) {
        region.offset += 64;
    }
    world->owners[2].segment_bytes[0] += 64;
    const auto moved = route(model.catalogue, world->owners, world->requests, {});
    ASSERT_TRUE(moved.ok());
    for (const Route& r : moved->routes) {
        for (const Chunk& chunk : r.chunks) {
            EXPECT_EQ(std::count(chunk.mirrors.begin(), chunk.mirrors.end(), chunk.owner == 2 ? 0 : 2), 0);
        }
    }
}

// Nothing but what can be mapped is, and only when no other path was asked for.
TEST(Route, MapsTheOwnersThatCanBeMapped) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    auto world = make_world(model, "tp=2,dp=2,ep=4", "tp=2");
    ASSERT_TRUE(world);
    using Choice = RouteOptions::PathChoice;
    world->requests[0].mapped_owners = {0, 2};
    const auto mixed = route(model.catalogue, world->owners, world->requests, {});
    ASSERT_TRUE(mixed.ok());
    std::set<int> mapped;
    for (std::size_t d = 0; d < mixed->routes.size(); ++d) {
        for (const Chunk& chunk : mixed->routes[d].chunks) {
            EXPECT_EQ(chunk.path == Path::kMapped, d == 0 && chunk.owner % 2 == 0);
            if (chunk.path == Path::kMapped) {
                mapped.insert(chunk.owner);
            }
        }
    }
    EXPECT_EQ(mapped, (std::set<int>{0, 2}));
    const auto direct = route(model.catalogue, world->owners, world->requests, {4 << 20, Choice::kDirect});
    ASSERT_TRUE(direct.ok());
    EXPECT_TRUE(std::all_of(direct->routes[0].chunks.begin(), direct->routes[0].chunks.end(),
                            [](const Chunk& chunk) { return chunk.path == Path::kDirect; }));
    const auto refused = route(model.catalogue, world->owners, world->requests, {4 << 20, Choice::kMapped});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kPlanRefused);
    EXPECT_THAT(refused.status().message(), testing::HasSubstr("cannot map the memory of trainer 1"));
}

TEST(Route, IsDeterministicAndFingerprintsWhatDecidesIt) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    const auto world = make_world(model, "tp=2,dp=2,ep=4", "tp=2,dp=2,ep=on");
    ASSERT_TRUE(world);
    const auto a = route(model.catalogue, world->owners, world->requests, {});
    const auto b = route(model.catalogue, world->owners, world->requests, {});
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->fingerprint, b->fingerprint);
    EXPECT_EQ(a->group_order, b->group_order);
    for (std::size_t d = 0; d < a->routes.size(); ++d) {
        ASSERT_EQ(a->routes[d].chunks.size(), b->routes[d].chunks.size());
        for (std::size_t c = 0; c < a->routes[d].chunks.size(); ++c) {
            const Chunk& x = a->routes[d].chunks[c];
            const Chunk& y = b->routes[d].chunks[c];
            EXPECT_EQ(std::tie(x.group, x.owner, x.path, x.wire_bytes, x.alternates),
                      std::tie(y.group, y.owner, y.path, y.wire_bytes, y.alternates));
            ASSERT_EQ(x.pieces.size(), y.pieces.size());
            for (std::size_t p = 0; p < x.pieces.size(); ++p) {
                EXPECT_EQ(x.pieces[p].copy, y.pieces[p].copy);
            }
        }
    }
    std::set<std::uint64_t> prints{a->fingerprint};
    EXPECT_TRUE(prints.insert(route(model.catalogue, world->owners, world->requests, {1 << 20})->fingerprint).second);
    EXPECT_TRUE(
        prints.insert(route(model.catalogue, world->owners, world->requests, {.direct_run = 1 << 10})->fingerprint)
            .second);
    EXPECT_TRUE(
        prints.insert(route(model.catalogue, world->owners, world->requests, {.direct_piece = 1 << 10})->fingerprint)
            .second);
    const auto other = make_world(model, "tp=4,ep=4", "tp=2,dp=2,ep=on");
    EXPECT_TRUE(prints.insert(route(model.catalogue, other->owners, other->requests, {})->fingerprint).second);
    World changed = *world;
    std::vector<DemandRequest> requests = changed.requests;
    Demand moved = changed.demands[0];
    moved.records[0].copy.dst_offset ^= 64;
    requests[0].demand = &moved;
    EXPECT_TRUE(prints.insert(route(model.catalogue, world->owners, requests, {})->fingerprint).second);
}

// The least busiest load over all assignments of bytes to owners, by binary search over a greedy-free feasibility test: max-flow on
// (source -> set -> owner -> sink) with unit steps of augmenting paths.
double best_busiest(const std::map<std::set<int>, double>& work, int owners) {
    const int sets = static_cast<int>(work.size());
    double total = 0;
    for (const auto& [set, bytes] : work) {
        total += bytes;
    }
    const auto feasible = [&](double cap) {
        const int nodes = sets + owners + 2;
        std::vector<std::map<int, double>> residual(static_cast<std::size_t>(nodes));
        int s = 1;
        for (const auto& [set, bytes] : work) {
            residual[0][s] = bytes;
            for (const int owner : set) {
                residual[static_cast<std::size_t>(s)][1 + sets + owner] = bytes;
                residual[static_cast<std::size_t>(1 + sets + owner)].emplace(s, 0.0);
            }
            residual[static_cast<std::size_t>(s)].emplace(0, 0.0);
            ++s;
        }
        for (int o = 0; o < owners; ++o) {
            residual[static_cast<std::size_t>(1 + sets + o)][nodes - 1] = cap;
        }
        double flow = 0;
        while (true) {
            std::vector<int> from(static_cast<std::size_t>(nodes), -1);
            std::vector<int> queue{0};
            from[0] = 0;
            for (std::size_t q = 0; q < queue.size(); ++q) {
                for (const auto& [to, room] : residual[static_cast<std::size_t>(queue[q])]) {
                    if (room > 1e-6 && from[static_cast<std::size_t>(to)] < 0) {
                        from[static_cast<std::size_t>(to)] = queue[q];
                        queue.push_back(to);
                    }
                }
            }
            if (from[static_cast<std::size_t>(nodes - 1)] < 0) {
                return flow >= total * (1 - 1e-9);
            }
            double step = total;
            for (int n = nodes - 1; n != 0; n = from[static_cast<std::size_t>(n)]) {
                step = std::min(step, residual[static_cast<std::size_t>(from[static_cast<std::size_t>(n)])][n]);
            }
            for (int n = nodes - 1; n != 0; n = from[static_cast<std::size_t>(n)]) {
                residual[static_cast<std::size_t>(from[static_cast<std::size_t>(n)])][n] -= step;
                residual[static_cast<std::size_t>(n)][from[static_cast<std::size_t>(n)]] += step;
            }
            flow += step;
        }
    };
    double low = total / owners;
    double high = total;
    for (int i = 0; i < 40; ++i) {
        const double middle = (low + high) / 2;
        (feasible(middle) ? high : low) = middle;
    }
    return high;
}

// Bytes of all records by the set of ranks whose boxes hold them, found element by element. Sets are bit masks.
std::map<std::set<int>, double> work_by_owner_set(const SmallModel& model, const World& world) {
    std::vector<std::vector<std::uint32_t>> holders(model.catalogue.size());
    for (std::size_t rank = 0; rank < world.owners.size(); ++rank) {
        for (const OwnedRegion& region : world.owners[rank].regions) {
            const CatalogueTensor& tensor = model.catalogue[region.tensor];
            auto& masks = holders[static_cast<std::size_t>(region.tensor)];
            masks.resize(static_cast<std::size_t>(tensor.elements()));
            StridedCopy walk;
            const Dims full = contiguous_strides(tensor.shape);
            for (std::size_t d = 0; d < full.size(); ++d) {
                walk.src_offset += region.begin[d] * full[d];
                walk.sizes.push_back(region.end[d] - region.begin[d]);
            }
            walk.src_strides = full;
            walk.dst_strides = full;
            for_each_item(walk,
                          [&](std::int64_t e, std::int64_t) { masks[static_cast<std::size_t>(e)] |= 1U << rank; });
        }
    }
    std::map<std::uint32_t, double> by_mask;
    for (const DemandRequest& request : world.requests) {
        for (const CopyRecord& record : request.demand->records) {
            const std::int64_t element = size_of(model.catalogue[record.tensor].dtype);
            const auto& masks = holders[static_cast<std::size_t>(record.tensor)];
            const double bytes = static_cast<double>(record.copy.item) * static_cast<double>(request.workers.size());
            std::uint32_t last = 0;
            double run = 0;
            for_each_item(record.copy, [&](std::int64_t src, std::int64_t) {
                const std::uint32_t mask = masks[static_cast<std::size_t>(src / element)];
                if (mask != last) {
                    by_mask[last] += run;
                    last = mask;
                    run = 0;
                }
                run += bytes;
            });
            by_mask[last] += run;
        }
    }
    std::map<std::set<int>, double> out;
    for (const auto& [mask, bytes] : by_mask) {
        std::set<int> ranks;
        for (int rank = 0; rank < 32; ++rank) {
            if ((mask >> rank & 1) != 0) {
                ranks.insert(rank);
            }
        }
        if (bytes > 0) {
            out[ranks] = bytes;
        }
    }
    return out;
}

TEST(Route, BusiestTrainerIsNearTheOptimum) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B", {{"num_hidden_layers", "6"},
                                                                 {"hidden_size", "128"},
                                                                 {"num_attention_heads", "8"},
                                                                 {"num_key_value_heads", "2"},
                                                                 {"head_dim", "32"},
                                                                 {"vocab_size", "1000"},
                                                                 {"num_experts", "8"},
                                                                 {"moe_intermediate_size", "64"}});
    const std::pair<const char*, const char*> pairs[] = {{"tp=4,dp=2", "tp=2"},
                                                         {"tp=2,pp=2,dp=2,ep=4", "tp=2,dp=2,ep=on"},
                                                         {"tp=2,dp=3", "tp=4,replicas=3"},
                                                         {"dp=8,ep=2", "tp=2,dp=2,ep=on"}};
    for (const auto& [trainer, worker] : pairs) {
        for (const SourceKind source : {SourceKind::kResident, SourceKind::kGathered}) {
            const auto world = make_world(model, trainer, worker, source);
            ASSERT_TRUE(world);
            const auto plan = route(model.catalogue, world->owners, world->requests, {});
            ASSERT_TRUE(plan.ok()) << plan.status().message();
            std::vector<double> load(world->owners.size(), 0);
            for (const Route& r : plan->routes) {
                for (const Chunk& chunk : r.chunks) {
                    load[static_cast<std::size_t>(chunk.owner)] +=
                        static_cast<double>(chunk.wire_bytes) * static_cast<double>(r.workers.size());
                }
            }
            const double best = best_busiest(work_by_owner_set(model, *world), static_cast<int>(load.size()));
            EXPECT_LE(*std::max_element(load.begin(), load.end()), 1.02 * best) << trainer << " -> " << worker;
        }
    }
}

TEST(Route, ReadsGroupsInterleavedOverStages) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    // Stage 0: groups 0 1 2, stage 1: groups 3 4.
    const auto world = make_world(model, "pp=2", "tp=2");
    ASSERT_TRUE(world);
    EXPECT_THAT(group_order(model.catalogue, world->owners), ElementsAre(0, 3, 1, 4, 2));
    const auto plan = route(model.catalogue, world->owners, world->requests, {1 << 12});
    ASSERT_TRUE(plan.ok());
    for (const Route& r : plan->routes) {
        std::vector<GroupId> seen;
        for (const Chunk& chunk : r.chunks) {
            if (seen.empty() || seen.back() != chunk.group) {
                seen.push_back(chunk.group);
            }
        }
        EXPECT_EQ(seen, plan->group_order);
    }
}

TEST(Route, TiedTableCountsForItsFirstStage) {
    const SmallModel model = test::small_model("Qwen3-0.6B");
    const auto world = make_world(model, "pp=3", "tp=1");
    ASSERT_TRUE(world);
    EXPECT_THAT(group_order(model.catalogue, world->owners), ElementsAre(0, 2, 3, 1, 4));
}

// --- hand-made demands ---

Demand one_record(Dims parameter_shape, DType dtype, StridedCopy copy, TensorId tensor = 0,
                  DType source = DType::kBF16) {
    Demand out;
    out.parameters.push_back({"p", dtype, std::move(parameter_shape)});
    out.records.push_back({tensor, 0, source, dtype, std::move(copy)});
    return out;
}

OwnedRegion rows(TensorId tensor, std::int64_t begin, std::int64_t end, std::int64_t columns, std::int64_t item = 2) {
    return {tensor, {begin, 0}, {end, columns}, 0, 0, {columns * item, item}};
}

Ownership owner_of(std::vector<OwnedRegion> regions, std::int64_t bytes) {
    Ownership out;
    out.regions = std::move(regions);
    out.segment_bytes = {bytes};
    return out;
}

TEST(Route, RefusesATensorOfWhichTwoStagesHoldDifferentBoxes) {
    const SmallModel model = test::hand_made({{"w", DType::kBF16, {8, 4}, 0, {}}});
    std::vector<Ownership> owners{owner_of({rows(0, 0, 8, 4)}, 64), owner_of({rows(0, 0, 8, 4)}, 64)};
    owners[1].stage = 1;
    EXPECT_TRUE(route(model.catalogue, owners, {}, {}).ok()) << "equal boxes are replicas";
    owners[1].regions[0].end[0] = 6;
    const Status refused = route(model.catalogue, owners, {}, {}).status();
    EXPECT_EQ(refused.code(), StatusCode::kPlanRefused);
    EXPECT_EQ(
        refused.message(),
        "tensor w is on stages 0 and 1, but only stage 1 has its box [0:6, 0:4]; what two stages hold must be equal");
}

void expect_hand_made(const SmallModel& model, std::vector<Ownership> owners, const Demand& demand,
                      RouteOptions options = {}) {
    World world;
    world.owners = std::move(owners);
    world.demands.push_back(demand);
    world.requests.push_back({&world.demands[0], {0}, {}, -1});
    expect_right_bytes(model, world, options, "hand-made");
}

TEST(Route, UnevenRowsWithAnEmptyOwner) {
    const SmallModel model = test::hand_made({{"w", DType::kBF16, {5, 4}, 0, {}}});
    std::vector<Ownership> owners{owner_of({rows(0, 0, 2, 4)}, 16), owner_of({rows(0, 2, 4, 4)}, 16),
                                  owner_of({rows(0, 4, 5, 4)}, 8), owner_of({}, 0)};
    const Demand demand = one_record({3, 4}, DType::kBF16, {8, 0, 2, {3, 4}, {8, 2}, {8, 2}});
    const DemandRequest request{&demand, {0}, {}, -1};
    const auto plan = route(model.catalogue, owners, std::span(&request, 1), {});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::map<int, std::int64_t> from;
    for (const Chunk& chunk : plan->routes[0].chunks) {
        from[chunk.owner] += chunk.wire_bytes;
        EXPECT_EQ(chunk.path, Path::kDirect);
    }
    EXPECT_EQ(from, (std::map<int, std::int64_t>{{0, 8}, {1, 16}}));
    expect_hand_made(model, owners, demand);
}

TEST(Route, RefusesAMissingRangeByTensorRangeAndRank) {
    const SmallModel model =
        test::hand_made({{"model.layers.0.mlp.experts.0.up_proj.weight", DType::kBF16, {512, 4}, 0, {}}});
    const std::vector<Ownership> owners{owner_of({rows(0, 0, 256, 4)}, 2048)};
    const Demand demand = one_record({256, 4}, DType::kBF16, {2048, 0, 2, {256, 4}, {8, 2}, {8, 2}});
    const DemandRequest request{&demand, {3}, {}, -1};
    const auto plan = route(model.catalogue, owners, std::span(&request, 1), {});
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().code(), StatusCode::kPlanRefused);
    for (const char* part : {"model.layers.0.mlp.experts.0.up_proj.weight", "[256:512, 0:4]",
                             "[0:256, 0:4] by trainer rank 0", "worker rank 3"}) {
        EXPECT_THAT(plan.status().message(), HasSubstr(part));
    }
    const std::vector<Ownership> nobody{owner_of({}, 0)};
    const auto refused = route(model.catalogue, nobody, std::span(&request, 1), {});
    EXPECT_THAT(refused.status().message(), HasSubstr("nothing by any trainer rank"));
}

TEST(Route, OwnersOfDisjointTensorsAreAllVisible) {
    const SmallModel model = test::hand_made({{"a", DType::kBF16, {4, 4}, 0, {}}, {"b", DType::kBF16, {4, 4}, 0, {}}});
    Ownership first = owner_of({rows(0, 0, 4, 4)}, 32);
    Ownership second = owner_of({rows(1, 0, 4, 4)}, 32);
    second.stage = 1;
    Demand demand = one_record({4, 4}, DType::kBF16, {0, 0, 2, {16}, {2}, {2}}, 0);
    demand.parameters.push_back({"q", DType::kBF16, {4, 4}});
    demand.records.push_back({1, 1, DType::kBF16, DType::kBF16, {0, 0, 2, {16}, {2}, {2}}});
    expect_hand_made(model, {first, second}, demand);
    expect_hand_made(model, {second, first}, demand);
}

TEST(Route, AllowedOwnersAndTheReaderItself) {
    const SmallModel model = test::hand_made({{"w", DType::kBF16, {8, 4}, 0, {}}});
    const std::vector<Ownership> owners{owner_of({rows(0, 0, 8, 4)}, 64), owner_of({rows(0, 0, 8, 4)}, 64),
                                        owner_of({rows(0, 0, 8, 4)}, 64)};
    const Demand demand = one_record({8, 4}, DType::kBF16, {0, 0, 2, {32}, {2}, {2}});
    const auto owners_of = [&](const DemandRequest& request) {
        const auto plan = route(model.catalogue, owners, std::span(&request, 1), {});
        EXPECT_TRUE(plan.ok());
        std::set<std::pair<int, Path>> out;
        for (const Chunk& chunk : plan->routes[0].chunks) {
            out.insert({chunk.owner, chunk.path});
        }
        return out;
    };
    EXPECT_THAT(owners_of({&demand, {0}, {2}, -1}), UnorderedElementsAre(std::pair(2, Path::kDirect)));
    EXPECT_THAT(owners_of({&demand, {1}, {0, 1}, 1}), UnorderedElementsAre(std::pair(1, Path::kMapped)));
}

// Sources that owners' boxes cut in every direction: blocks of different sizes, transposed and strided memory, two owners of some.
TEST(Route, FollowsFlatAndPermutedWalksThroughOwnersBoxes) {
    const SmallModel model = test::hand_made({{"w", DType::kBF16, {6, 5, 4}, 0, {}}});
    std::mt19937 random(11);
    const auto pick = [&](std::int64_t below) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below));
    };
    for (int round = 0; round < 300; ++round) {
        // Owners: a random grid, each cell at one or two ranks, in memory with a random order of axes.
        std::vector<std::vector<std::int64_t>> cuts;
        for (const std::int64_t extent : {6, 5, 4}) {
            std::set<std::int64_t> set{0, extent};
            for (std::int64_t n = pick(3); n > 0; --n) {
                set.insert(pick(extent));
            }
            cuts.emplace_back(set.begin(), set.end());
        }
        std::vector<Ownership> owners(4);
        for (Ownership& owner : owners) {
            owner.segment_bytes = {0};
        }
        for (std::size_t i = 0; i + 1 < cuts[0].size(); ++i) {
            for (std::size_t j = 0; j + 1 < cuts[1].size(); ++j) {
                for (std::size_t k = 0; k + 1 < cuts[2].size(); ++k) {
                    for (std::int64_t copies = 1 + pick(2); copies > 0; --copies) {
                        Ownership& owner = owners[static_cast<std::size_t>(pick(4))];
                        OwnedRegion region{0,
                                           {cuts[0][i], cuts[1][j], cuts[2][k]},
                                           {cuts[0][i + 1], cuts[1][j + 1], cuts[2][k + 1]},
                                           0,
                                           0,
                                           {0, 0, 0}};
                        std::vector<std::size_t> axes{0, 1, 2};
                        std::shuffle(axes.begin(), axes.end(), random);
                        std::int64_t stride = 2;
                        for (const std::size_t axis : axes) {
                            region.strides[axis] = stride;
                            stride *= region.end[axis] - region.begin[axis];
                        }
                        region.offset = owner.segment_bytes[0];
                        owner.segment_bytes[0] += stride;
                        owner.regions.push_back(region);
                    }
                }
            }
        }
        // A record that walks the flat tensor in odd ways: any start, and strides that wrap around axes; up to three dimensions.
        StridedCopy copy;
        copy.item = 2;
        std::int64_t room = 119;
        copy.src_offset = 2 * pick(20);
        room -= copy.src_offset / 2;
        Dims sizes;
        Dims strides;
        for (std::int64_t n = pick(4); n > 0; --n) {
            const std::int64_t steps[] = {0, 1, 2, 3, 4, 5, 7, 8, 20, 24, 40};
            const std::int64_t step = steps[pick(11)];
            const std::int64_t most = step == 0 ? 3 : room / step + 1;
            const std::int64_t size = 1 + pick(std::min<std::int64_t>(most, 30));
            room -= step * (size - 1);
            sizes.push_back(size);
            strides.push_back(2 * step);
        }
        std::vector<std::size_t> order(sizes.size());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        copy.sizes = sizes;
        copy.src_strides = strides;
        copy.dst_strides = Dims(sizes.size(), 0);
        std::int64_t stride = 2;
        for (const std::size_t d : order) {
            copy.dst_strides[d] = stride;
            stride *= sizes[d];
        }
        expect_hand_made(model, owners, one_record({stride / 2}, DType::kBF16, copy), {round % 2 == 0 ? 256 : 1 << 20});
        if (HasFailure()) {
            FAIL() << "round " << round;
        }
    }
}

TEST(Route, ViewsAsOtherDtypes) {
    const SmallModel model = test::hand_made({{"w", DType::kBF16, {4, 8}, 0, {}}});
    const std::vector<Ownership> owners{owner_of({{0, {0, 0}, {4, 3}, 0, 0, {6, 2}}}, 24),
                                        owner_of({{0, {0, 3}, {4, 8}, 0, 0, {2, 8}}}, 40)};
    // As bytes: the high byte of each element.
    expect_hand_made(model, owners, one_record({4, 8}, DType::kU8, {1, 0, 1, {4, 8}, {16, 2}, {8, 1}}, 0, DType::kU8));
    // As f32 without a conversion: an element may span two owners.
    expect_hand_made(model, owners,
                     one_record({4, 4}, DType::kF32, {0, 0, 4, {4, 4}, {16, 4}, {16, 4}}, 0, DType::kF32));
    // Seen as f32 and narrowed to bf16: an element that two owners share cannot be converted by either.
    const Demand narrow = one_record({4, 4}, DType::kBF16, {0, 0, 4, {4, 4}, {16, 4}, {8, 2}}, 0, DType::kF32);
    const DemandRequest request{&narrow, {0}, {}, -1};
    const auto plan = route(model.catalogue, owners, std::span(&request, 1), {});
    EXPECT_EQ(plan.status().code(), StatusCode::kPlanRefused);
    EXPECT_THAT(plan.status().message(), HasSubstr("multiples of 2"));
    const std::vector<Ownership> even{owner_of({{0, {0, 0}, {4, 4}, 0, 0, {8, 2}}}, 32),
                                      owner_of({{0, {0, 4}, {4, 8}, 0, 0, {8, 2}}}, 32)};
    expect_hand_made(model, even, narrow);
}

TEST(Route, ConversionsKeepElementsAndNarrowingIsPacked) {
    const SmallModel model =
        test::hand_made({{"wide", DType::kF32, {64, 64}, 0, {}}, {"narrow", DType::kBF16, {64, 64}, 0, {}}});
    const TensorId wide = *model.catalogue.find("wide");
    const TensorId narrow = *model.catalogue.find("narrow");
    const std::vector<Ownership> owners{
        owner_of({rows(wide, 0, 64, 64, 4), {narrow, {0, 0}, {64, 64}, 0, 16384, {128, 2}}}, 24576)};
    const Demand narrows = one_record({64, 64}, DType::kBF16, {0, 0, 4, {4096}, {4}, {2}}, wide, DType::kF32);
    const Demand widens = one_record({64, 64}, DType::kF32, {0, 0, 2, {4096}, {2}, {4}}, narrow, DType::kBF16);
    for (const std::int64_t chunk : {std::int64_t{256}, std::int64_t{1} << 20}) {
        expect_hand_made(model, owners, narrows, {chunk, RouteOptions::PathChoice::kDirect});
        expect_hand_made(model, owners, widens, {chunk});
    }
    const DemandRequest request{&widens, {0}, {}, -1};
    EXPECT_EQ(route(model.catalogue, owners, std::span(&request, 1), {})->routes[0].chunks[0].wire_bytes, 8192)
        << "the wire carries bf16";
}

TEST(Route, ScalarsAndEmptyTensors) {
    const SmallModel model = test::hand_made({{"empty", DType::kBF16, {0}, 0, {}},
                                              {"none", DType::kBF16, {2, 0}, 0, {}},
                                              {"scale", DType::kF32, {}, 0, {}}});
    const TensorId scale = *model.catalogue.find("scale");
    const std::vector<Ownership> owners{owner_of({{scale, {}, {}, 0, 8, {}}}, 16)};
    Demand demand = one_record({3}, DType::kF32, {0, 4, 4, {}, {}, {}}, scale, DType::kF32);
    demand.parameters.push_back({"e", DType::kBF16, {2, 0}});
    demand.records.push_back(
        {*model.catalogue.find("none"), 1, DType::kBF16, DType::kBF16, {0, 0, 2, {2, 0}, {0, 2}, {0, 2}}});
    expect_hand_made(model, owners, demand);
}

TEST(Route, RefusesRecordsAndRegionsThatLeaveTheirTensor) {
    const SmallModel model = test::hand_made({{"w", DType::kBF16, {4, 4}, 0, {}}, {"one", DType::kBF16, {1}, 0, {}}});
    const TensorId w = *model.catalogue.find("w");
    const TensorId one = *model.catalogue.find("one");
    const std::vector<Ownership> owners{owner_of({{std::min(w, one), {}, {}, 0, 0, {}}}, 64)};
    const Demand fine = one_record({4, 4}, DType::kBF16, {0, 0, 2, {16}, {2}, {2}}, w);
    const DemandRequest request{&fine, {0}, {}, -1};
    EXPECT_THAT(route(model.catalogue, owners, std::span(&request, 1), {}).status().message(),
                HasSubstr("number of axes"));
    const std::vector<Ownership> outside{owner_of({rows(w, 0, 5, 4)}, 64)};
    EXPECT_THAT(route(model.catalogue, outside, std::span(&request, 1), {}).status().message(),
                HasSubstr("outside the shape"));
    const std::vector<Ownership> good{owner_of({rows(w, 0, 4, 4), {one, {0}, {1}, 0, 32, {2}}}, 64)};
    for (const auto& [tensor, copy] :
         {std::pair{w, StridedCopy{2, 0, 2, {16}, {2}, {2}}},
          std::pair{w, StridedCopy{0, 0, 2, {5, 4}, {8, 2}, {8, 2}}}, std::pair{one, StridedCopy{2, 0, 2, {}, {}, {}}},
          std::pair{w, StridedCopy{-2, 0, 2, {4}, {2}, {2}}}}) {
        const Demand bad = one_record({32}, DType::kBF16, copy, tensor);
        const DemandRequest wrong{&bad, {0}, {}, -1};
        const auto plan = route(model.catalogue, good, std::span(&wrong, 1), {});
        EXPECT_EQ(plan.status().code(), StatusCode::kPlanRefused);
        EXPECT_THAT(plan.status().message(), HasSubstr("outside its tensor"));
    }
    EXPECT_EQ(route(model.catalogue, good, std::span(&request, 1), {kMinChunkBytes - 1}).status().code(),
              StatusCode::kInvalidArgument);
}

// Metadata only: offsets and counts beyond 32 bits.
TEST(Route, OffsetsBeyondFourGibibytes) {
    const std::int64_t columns = 4096;
    const std::int64_t total = (std::int64_t{1} << 32) / columns + 2;
    const auto catalogue = Catalogue::create({{"big", DType::kU8, {total, columns}, 0, {}}}, 1);
    ASSERT_TRUE(catalogue.ok());
    const std::int64_t half = total / 2;
    const std::vector<Ownership> owners{owner_of({rows(0, 0, half, columns, 1)}, half * columns),
                                        owner_of({rows(0, half, total, columns, 1)}, (total - half) * columns)};
    const Demand demand =
        one_record({total * columns}, DType::kU8, {0, 0, 1, {total * columns}, {1}, {1}}, 0, DType::kU8);
    const DemandRequest request{&demand, {0}, {}, -1};
    for (const std::int64_t chunk : {std::int64_t{4} << 20, std::int64_t{1} << 40}) {
        const auto plan = route(*catalogue, owners, std::span(&request, 1), {chunk});
        ASSERT_TRUE(plan.ok());
        std::int64_t end[2] = {0, 0};
        std::int64_t bytes = 0;
        for (const Chunk& c : plan->routes[0].chunks) {
            ASSERT_EQ(c.pieces.size(), 1U);
            const StridedCopy& copy = c.pieces[0].copy;
            EXPECT_EQ(copy.item, c.wire_bytes) << "one run";
            EXPECT_EQ(copy.src_offset, end[c.owner]);
            EXPECT_EQ(copy.dst_offset, end[c.owner] + (c.owner == 0 ? 0 : half * columns));
            end[c.owner] += copy.item;
            bytes += copy.item;
        }
        EXPECT_EQ(bytes, total * columns);
        EXPECT_GT(end[0] + end[1], std::int64_t{1} << 32);
    }
}

TEST(Route, RowContiguousRegionsAreReadDirectlyAndColumnsPacked) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    const auto world = make_world(model, "tp=2", "tp=4");
    ASSERT_TRUE(world);
    const auto plan = route(model.catalogue, world->owners, world->requests, {.direct_piece = 0});
    ASSERT_TRUE(plan.ok());
    for (const Route& r : plan->routes) {
        for (const Chunk& chunk : r.chunks) {
            for (const Piece& piece : chunk.pieces) {
                EXPECT_EQ(chunk.path == Path::kDirect, source_is_contiguous(piece.copy));
            }
        }
    }
}

// Tensors of one group, of `bytes` each, all of one owner; every second row of those in `strided` is asked for, all of the others.
std::vector<std::pair<Path, std::int64_t>> paths_of(const std::vector<std::int64_t>& bytes,
                                                    const std::set<TensorId>& strided, const RouteOptions& options) {
    constexpr std::int64_t kRow = 64;
    std::vector<CatalogueTensor> tensors;
    Ownership owner;
    Demand demand;
    std::int64_t offset = 0;
    for (TensorId id = 0; id < static_cast<TensorId>(bytes.size()); ++id) {
        const std::int64_t all = bytes[static_cast<std::size_t>(id)] / kRow;
        tensors.push_back({"t" + std::to_string(id), DType::kU8, {all, kRow}, 0, {}});
        owner.regions.push_back({id, {0, 0}, {all, kRow}, 0, offset, {kRow, 1}});
        offset += all * kRow;
        const std::int64_t step = strided.contains(id) ? 2 : 1;
        demand.parameters.push_back({"p" + std::to_string(id), DType::kU8, {all / step, kRow}});
        demand.records.push_back(
            {id, id, DType::kU8, DType::kU8, {0, 0, 1, {all / step, kRow}, {step * kRow, 1}, {kRow, 1}}});
    }
    owner.segment_bytes = {offset};
    const SmallModel model = test::hand_made(std::move(tensors));
    const std::vector<Ownership> owners{owner};
    const DemandRequest request{&demand, {0}, {}, -1};
    const auto plan = route(model.catalogue, owners, std::span(&request, 1), options);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    std::vector<std::pair<Path, std::int64_t>> out;
    for (const Chunk& chunk : plan->routes[0].chunks) {
        out.emplace_back(chunk.path, chunk.wire_bytes);
    }
    return out;
}

TEST(Route, ShortPiecesThatComeTogetherAreOnePackedChunk) {
    using Chunks = std::vector<std::pair<Path, std::int64_t>>;
    constexpr std::int64_t kShort = 8 << 10;
    constexpr std::int64_t kLong = 32 << 10;
    EXPECT_EQ(paths_of({kShort, kShort, kShort}, {}, {}), (Chunks{{Path::kDirect, 3 * kShort}}))
        << "too few to be worth it";
    EXPECT_EQ(paths_of({kShort, kShort, kShort, kShort}, {}, {}), (Chunks{{Path::kPacked, 4 * kShort}}));
    EXPECT_EQ(paths_of({kShort, kShort, kShort, kShort, kLong}, {}, {}),
              (Chunks{{Path::kDirect, kLong}, {Path::kPacked, 4 * kShort}}));
    EXPECT_EQ(paths_of({2 * kShort, kShort, kLong}, {0}, {}),
              (Chunks{{Path::kDirect, kLong}, {Path::kPacked, 2 * kShort}}))
        << "something is packed anyway";
    EXPECT_EQ(paths_of({kShort, kShort, kShort, kShort}, {}, {.path = RouteOptions::PathChoice::kDirect}),
              (Chunks{{Path::kDirect, 4 * kShort}}));
}

// Three tensors of an expert lie one after the other, and go to two parameters in turn.
TEST(Route, DirectChunksFollowTheOwnersMemory) {
    const SmallModel model = test::small_model("Qwen3-30B-A3B");
    const std::optional<World> world = make_world(model, "tp=1", "tp=1");
    ASSERT_TRUE(world);
    const auto plan =
        route(model.catalogue, world->owners, world->requests, {4 << 20, RouteOptions::PathChoice::kDirect});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    int alternating = 0;
    for (const Chunk& chunk : plan->routes.front().chunks) {
        for (std::size_t i = 2; i < chunk.pieces.size(); ++i) {
            const Piece& a = chunk.pieces[i - 2];
            const Piece& b = chunk.pieces[i - 1];
            const Piece& c = chunk.pieces[i];
            EXPECT_LT(b.copy.src_offset, c.copy.src_offset);
            alternating += a.parameter == c.parameter && a.parameter != b.parameter ? 1 : 0;
        }
    }
    EXPECT_GT(alternating, 0);
}

TEST(Route, LongRunsAreReadDirectly) {
    const std::int64_t row = 64 << 10;
    const auto catalogue = Catalogue::create({{"w", DType::kU8, {16, 4 * row}, 0, {}}}, 1);
    const std::vector<Ownership> owners{owner_of({rows(0, 0, 16, 4 * row, 1)}, 64 * row)};
    for (const std::int64_t run : {row, row - 1}) {
        const Demand demand =
            one_record({16, run}, DType::kU8, {0, 0, 1, {16, run}, {4 * row, 1}, {run, 1}}, 0, DType::kU8);
        const DemandRequest request{&demand, {0}, {}, -1};
        const auto plan = route(*catalogue, owners, std::span(&request, 1), {});
        EXPECT_EQ(plan->routes[0].chunks[0].path, run >= row ? Path::kDirect : Path::kPacked);
    }
}

}  // namespace
}  // namespace sluice

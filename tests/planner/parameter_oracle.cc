#include "tests/planner/parameter_oracle.h"

#include "planner/coverage.h"
#include "planner/dry_run.h"
#include "planner/router.h"
#include "planner/trainer_ownership.h"
#include "tests/planner/demand_memory.h"
#include "tests/planner/plan_execution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

namespace sluice::test {
namespace {

constexpr unsigned char kUnwritten = 0xCD;  // what plan_execution leaves where nothing is pulled

// Calls `visit(element, source byte or -1, tensor or nothing)` for every element of a parameter.
template <class Visit>
void for_each_element(const Catalogue& catalogue, const Wanted& wanted, const Visit& visit) {
    const std::int64_t elements = num_elements(wanted.shape);
    Index at(wanted.shape.size(), 0);
    for (std::int64_t i = 0; i < elements; ++i) {
        std::int64_t rest = i;
        for (std::size_t k = at.size(); k-- > 0;) {
            at[k] = rest % wanted.shape[k];
            rest /= wanted.shape[k];
        }
        const Source source = wanted.source(at);
        if (!source) {
            visit(static_cast<std::size_t>(i), kZero, at);
            continue;
        }
        const auto id = catalogue.find(source->first);
        ASSERT_TRUE(id.has_value()) << source->first;
        const CatalogueTensor& tensor = catalogue[*id];
        std::int64_t flat = 0;
        for (std::size_t k = 0; k < tensor.shape.size(); ++k) {
            ASSERT_LT(source->second[k], tensor.shape[k]);
            flat = flat * tensor.shape[k] + source->second[k];
        }
        visit(static_cast<std::size_t>(i), Origin{*id, tensor.dtype, flat * size_of(tensor.dtype)}, at);
    }
}

// The bytes of a parameter, from whole tensors: the only conversion is from bf16 to f32.
Bytes wanted_bytes(const SmallModel& model, const Wanted& wanted) {
    const auto size = static_cast<std::size_t>(size_of(wanted.dtype));
    Bytes out(static_cast<std::size_t>(num_elements(wanted.shape)) * size, kUnwritten);
    for_each_element(model.catalogue, wanted, [&](std::size_t element, const Origin& origin, const Index&) {
        if (origin == kZero) {
            return;
        }
        const Bytes& tensor = model.tensors[static_cast<std::size_t>(origin.tensor)];
        const auto from = tensor.begin() + origin.byte;
        const auto to = out.begin() + static_cast<std::ptrdiff_t>(element * size);
        if (origin.source == wanted.dtype) {
            std::copy(from, from + static_cast<std::ptrdiff_t>(size), to);
        } else {
            ASSERT_TRUE(origin.source == DType::kBF16 && wanted.dtype == DType::kF32);
            std::fill(to, to + 2, static_cast<unsigned char>(0));
            std::copy(from, from + 2, to + 2);
        }
    });
    return out;
}

struct Trainer {
    const char* layout;
    SourceKind source;
};
constexpr Trainer kTrainers[] = {{"tp=2,pp=2,dp=2,ep=2", SourceKind::kResident},
                                 {"tp=4,ep=2,etp=2", SourceKind::kResident},
                                 {"tp=2,dp=2,ep=4,format=megatron", SourceKind::kResident},
                                 {"fsdp=3", SourceKind::kResident},
                                 {"dp=3,ep=3", SourceKind::kResident},
                                 {"tp=2,dp=2,pp=2,ep=2,etp=2,format=megatron", SourceKind::kGathered},
                                 {"tp=2,fsdp=5", SourceKind::kResident},
                                 {"tp=4,format=megatron", SourceKind::kResident},
                                 {"tp=2,dp=2,etp=2", SourceKind::kGathered},
                                 {"pp=2,stages=1/*", SourceKind::kResident},
                                 {"fsdp=2,tp=2,dp=2", SourceKind::kGathered}};

// Nothing when this trainer cannot hold the model.
std::optional<std::vector<Ownership>> owners_of(const SmallModel& model, const Trainer& trainer) {
    std::string text = trainer.layout;
    const int layers = model.catalogue.groups() - 2;
    if (const std::size_t star = text.find('*'); star != std::string::npos) {
        text.replace(star, 1, std::to_string(std::max(1, layers - 1)));
    }
    const TrainerLayout layout = TrainerLayout::parse(text).value();
    std::vector<Ownership> out;
    for (int rank = 0; rank < layout.world_size(); ++rank) {
        Result<Ownership> owned = trainer_ownership(model.catalogue, model.config, layout, rank, trainer.source);
        if (!owned.ok()) {
            return std::nullopt;
        }
        out.push_back(std::move(*owned));
    }
    return out;
}

// Pulls all demands from three kinds of trainers and compares every byte with the oracle.
void compare_bytes(const SmallModel& model, const std::vector<Demand>& demands, const std::vector<Oracle>& oracles,
                   std::size_t first_trainer) {
    constexpr int kRuns = 3;
    constexpr std::int64_t kChunkBytes = 1500;
    std::vector<DemandRequest> requests(demands.size());
    std::vector<std::vector<Bytes>> wanted(demands.size());
    for (std::size_t d = 0; d < demands.size(); ++d) {
        requests[d].demand = &demands[d];
        requests[d].workers = {static_cast<int>(d), static_cast<int>(d + demands.size())};
        for (const Parameter& parameter : demands[d].parameters) {
            wanted[d].push_back(wanted_bytes(model, oracles[d].parameters.at(parameter.name)));
        }
    }
    int runs = 0;
    for (std::size_t n = 0; n < std::size(kTrainers) && runs < kRuns; ++n) {
        const Trainer& trainer = kTrainers[(first_trainer + n) % std::size(kTrainers)];
        const auto owners = owners_of(model, trainer);
        if (!owners) {
            continue;
        }
        ++runs;
        SCOPED_TRACE(trainer.layout);
        const Result<Plan> plan = route(model.catalogue, *owners, requests, {kChunkBytes});
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        std::vector<OwnerMemory> memory;
        for (const Ownership& owner : *owners) {
            memory.push_back(fill_owner(model, owner));
        }
        for (std::size_t d = 0; d < demands.size(); ++d) {
            const std::vector<Bytes> got = execute(plan->routes[d], demands[d], memory, kChunkBytes);
            for (std::size_t p = 0; p < got.size(); ++p) {
                EXPECT_EQ(got[p], wanted[d][p]) << "rank " << d << " " << demands[d].parameters[p].name;
            }
        }
    }
    EXPECT_EQ(runs, kRuns) << "too many trainers refused this model";
}

}  // namespace

ModelConfig make_config(const std::string& architecture, const char* json) {
    return ModelConfig::create(nlohmann::json::parse(json), architecture).value();
}

void compare(const ModelConfig& config, const Catalogue& catalogue, const Combination& c,
             const std::function<void(Oracle&)>& fill, const std::set<std::string>& unread) {
    SCOPED_TRACE(config.architecture() + " tp=" + std::to_string(c.tp) + " dp=" + std::to_string(c.dp) +
                 " ep=" + std::to_string(c.ep) + " redundant=" + std::to_string(c.redundant));
    const WorkerLayout layout{.tp = c.tp,
                              .dp = c.dp,
                              .ep = c.ep,
                              .replicas = 1,
                              .placement = c.round_robin ? ExpertPlacement::kRoundRobin : ExpertPlacement::kLinear,
                              .redundant = c.redundant};
    std::vector<Demand> demands;
    std::vector<Oracle> oracles;
    for (int rank = 0; rank < layout.pool_size(); ++rank) {
        SCOPED_TRACE("rank " + std::to_string(rank));
        Result<Demand> result = dry_run(catalogue, config, layout, rank);
        ASSERT_TRUE(result.ok()) << result.status().message();
        demands.push_back(std::move(result).value());
        const Demand& demand = demands.back();
        oracles.push_back(
            {.t = c.tp, .d = c.dp, .rank = rank, .ep = c.ep, .round_robin = c.round_robin, .redundant = c.redundant});
        Oracle& oracle = oracles.back();
        fill(oracle);

        ASSERT_EQ(demand.parameters.size(), oracle.parameters.size());
        const DemandMemory memory(demand);
        ASSERT_TRUE(memory.faults().empty()) << memory.faults().front();
        std::int64_t zero_bytes = 0;
        for (std::size_t p = 0; p < demand.parameters.size(); ++p) {
            const Parameter& parameter = demand.parameters[p];
            SCOPED_TRACE(parameter.name);
            const auto wanted = oracle.parameters.find(parameter.name);
            ASSERT_NE(wanted, oracle.parameters.end());
            ASSERT_EQ(parameter.shape, wanted->second.shape);
            ASSERT_EQ(parameter.dtype, wanted->second.dtype);
            for_each_element(
                catalogue, wanted->second, [&](std::size_t element, const Origin& expected, const Index& at) {
                    zero_bytes += expected == kZero ? size_of(parameter.dtype) : 0;
                    ASSERT_EQ(memory.parameter(p)[element].size(), 1U) << "at " << testing::PrintToString(at);
                    ASSERT_EQ(memory.parameter(p)[element].front(), expected) << "at " << testing::PrintToString(at);
                });
            if (testing::Test::HasFatalFailure()) {
                return;
            }
        }
        const DemandCoverage coverage = prove_coverage(demand);
        EXPECT_TRUE(coverage.status.ok()) << coverage.status.message();
        EXPECT_EQ(coverage.padding_bytes, zero_bytes);
    }
    std::vector<const Demand*> all;
    for (const Demand& demand : demands) {
        all.push_back(&demand);
    }
    const SourceCoverage sources = source_coverage(catalogue, all);
    std::set<std::string> unread_names;
    for (const TensorId id : sources.unread) {
        unread_names.insert(catalogue[id].name);
    }
    EXPECT_EQ(unread_names, unread);
    EXPECT_TRUE(sources.partly_read.empty());
    compare_bytes(with_bytes(config, catalogue), demands, oracles,
                  static_cast<std::size_t>(c.tp + 3 * c.dp + (c.ep ? 4 : 0) + c.redundant));
}

void compare(const ModelConfig& config, const Combination& c, const std::function<void(Oracle&)>& fill,
             const std::set<std::string>& unread) {
    const Result<Catalogue> catalogue = checkpoint_catalogue(config);
    ASSERT_TRUE(catalogue.ok()) << catalogue.status().message();
    compare(config, *catalogue, c, fill, unread);
}

}  // namespace sluice::test

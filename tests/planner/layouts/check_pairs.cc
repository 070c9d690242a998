#include "planner/builtin_models.h"
#include "planner/coverage.h"
#include "planner/dry_run.h"
#include "planner/router.h"
#include "tests/planner/layouts/best_balance.h"
#include "tests/planner/layouts/layout_pairs.h"
#include "tests/planner/layouts/pulled_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

namespace sluice::test {
namespace {

constexpr double kMostImbalance = 1.10;

std::string joined(const std::vector<std::string>& pools) {
    std::string out;
    for (const std::string& pool : pools) {
        out += (out.empty() ? "" : " + ") + pool;
    }
    return out;
}

std::int64_t wire_bytes(const Demand& demand) {
    std::int64_t bytes = 0;
    for (const CopyRecord& r : demand.records) {
        bytes += r.copy.items() * std::min(size_of(r.source_dtype), size_of(r.parameter_dtype));
    }
    return bytes;
}

void expect_covered(const Demand& demand, const std::string& what) {
    const DemandCoverage coverage = prove_coverage(demand);
    EXPECT_TRUE(coverage.status.ok()) << what << ": " << coverage.status.message();
    EXPECT_EQ(coverage.holes, 0) << what;
    EXPECT_EQ(coverage.overlaps, 0) << what;
}

// The layout's text with "stages=*" written out.
std::string with_stages(std::string text, int layers) {
    const std::size_t star = text.find('*');
    if (star != std::string::npos) {
        const int first = layers > 4 ? layers / 3 + 2 : 1;
        const int second = layers > 4 ? layers / 3 - 1 : 1;
        text.replace(
            star, 1,
            std::to_string(first) + "/" + std::to_string(second) + "/" + std::to_string(layers - first - second));
    }
    return text;
}

// What the route writes, as a demand: the pieces in place of the records, their runs taken apart into elements.
Demand as_demand(const Demand& demand, const Route& route) {
    Demand out{demand.parameters, {}, demand.fills, demand.not_from_trainer};
    for (const Chunk& chunk : route.chunks) {
        for (const Piece& piece : chunk.pieces) {
            StridedCopy copy = piece.copy;
            const std::int64_t element = size_of(piece.source_dtype);
            if (copy.item > element) {
                copy.sizes.push_back(copy.item / element);
                copy.src_strides.push_back(element);
                copy.dst_strides.push_back(element);
                copy.item = element;
            }
            out.records.push_back({0, piece.parameter, piece.source_dtype, piece.parameter_dtype, std::move(copy)});
        }
    }
    return out;
}

// The demands of several pools, with their workers numbered one pool after the other.
struct Workers {
    std::vector<std::unique_ptr<Demand>> demands;  // requests point to them
    std::vector<DemandRequest> requests;
    std::vector<std::int64_t> bytes;  // by demand, by the formula
};

class Checker {
public:
    Checker(const LayoutPairs& pairs, ModelConfig config, Catalogue catalogue)
        : pairs_(pairs), config_(std::move(config)), catalogue_(std::move(catalogue)) {}

    Workers make_workers(const std::vector<std::string>& pools) const {
        Workers out;
        int first = 0;
        for (const std::string& text : pools) {
            const WorkerLayout layout = WorkerLayout::parse(text).value();
            for (int rank = 0; rank < layout.pool_size(); ++rank) {
                const std::string what = text + " rank " + std::to_string(rank);
                Result<Demand> demand = dry_run(catalogue_, config_, layout, rank);
                EXPECT_TRUE(demand.ok()) << what << ": " << demand.status().message();
                if (!demand.ok()) {
                    return out;
                }
                expect_covered(*demand, what);
                out.bytes.push_back(pulled_bytes(config_, pairs_.form, layout, rank));
                EXPECT_EQ(wire_bytes(*demand), out.bytes.back()) << what;
                out.demands.push_back(std::make_unique<Demand>(std::move(*demand)));
                DemandRequest request;
                request.demand = out.demands.back().get();
                for (int replica = 0; replica < layout.replicas; ++replica) {
                    request.workers.push_back(first + replica * layout.pool_size() + rank);
                }
                out.requests.push_back(std::move(request));
            }
            first += layout.world_size();
        }
        return out;
    }

    std::vector<Ownership> make_owners(const TrainerCase& trainer) const {
        const TrainerLayout layout = TrainerLayout::parse(with_stages(trainer.layout, catalogue_.groups() - 2)).value();
        std::vector<Ownership> out;
        for (int rank = 0; rank < layout.world_size(); ++rank) {
            Result<Ownership> owned = trainer_ownership(catalogue_, config_, layout, rank, trainer.source);
            EXPECT_TRUE(owned.ok()) << trainer.layout << ": " << owned.status().message();
            if (!owned.ok()) {
                return {};
            }
            out.push_back(std::move(*owned));
        }
        return out;
    }

    void check(const std::string& pair, const std::vector<Ownership>& owners, const OwnerMap& map,
               const Workers& workers, PairFigures& figures) const {
        SCOPED_TRACE(pair);
        const Result<Plan> plan = route(catalogue_, owners, workers.requests, {});
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        ASSERT_EQ(plan->routes.size(), workers.demands.size());
        for (std::size_t d = 0; d < plan->routes.size(); ++d) {
            std::int64_t bytes = 0;
            for (const Chunk& chunk : plan->routes[d].chunks) {
                bytes += chunk.wire_bytes;
            }
            EXPECT_EQ(bytes, workers.bytes[d]) << "demand " << d;
            expect_covered(as_demand(*workers.demands[d], plan->routes[d]), "route " + std::to_string(d));
        }
        const double best = least_busiest(map.work(workers.requests), map.owners());
        const double balance = static_cast<double>(busiest(*plan, map.owners())) / best;
        EXPECT_LE(balance, kMostImbalance);
        ++figures.pairs;
        if (balance > figures.worst_balance) {
            figures.worst_balance = balance;
            figures.worst_pair = pair;
        }
    }

    const Catalogue& catalogue() const { return catalogue_; }

private:
    const LayoutPairs& pairs_;
    ModelConfig config_;
    Catalogue catalogue_;
};

}  // namespace

PairFigures check_pairs(const LayoutPairs& pairs, bool full_size) {
    PairFigures figures;
    ModelConfig config = builtin_model(pairs.model).value().config;
    if (!full_size) {
        for (const auto& [key, value] : pairs.shrunk) {
            EXPECT_TRUE(config.set(key, value).ok()) << key;
        }
    }
    Catalogue catalogue = checkpoint_catalogue(config, pairs.form).value();
    const Checker checker(pairs, std::move(config), std::move(catalogue));
    const bool thin = pairs.trainers.size() * pairs.pools.size() > 30 && checker.catalogue().size() > 15000;
    std::vector<Workers> workers;
    for (const std::vector<std::string>& pools : pairs.pools) {
        workers.push_back(checker.make_workers(pools));
    }
    for (std::size_t t = 0; t < pairs.trainers.size(); ++t) {
        const std::vector<Ownership> owners = checker.make_owners(pairs.trainers[t]);
        if (testing::Test::HasFailure()) {
            return figures;
        }
        const OwnerMap map(checker.catalogue(), owners);
        for (std::size_t w = 0; w < workers.size(); ++w) {
            const std::size_t pair = t * workers.size() + w;
            if (full_size ? !(thin && pair % 3 == 2) : t % workers.size() == w) {
                checker.check(pairs.trainers[t].layout + " -> " + joined(pairs.pools[w]), owners, map, workers[w],
                              figures);
            }
        }
    }
    return figures;
}

}  // namespace sluice::test

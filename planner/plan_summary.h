#pragma once

#include "planner/catalogue.h"
#include "planner/cost_model.h"
#include "planner/ownership.h"
#include "planner/plan.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sluice {

/// What a summary reports but a plan does not know.
struct SummaryFacts {
    std::string model_name;
    int workers = 0;                  ///< World size of the worker side.
    std::vector<int> pool_of_demand;  ///< By DemandId.
    std::int64_t holes = 0;           ///< Elements, over all worker ranks; as are overlaps and padding.
    std::int64_t overlaps = 0;
    std::int64_t padding_bytes = 0;
    std::vector<std::string> unread_tensors;
    std::vector<std::string> refused;
    std::int64_t worker_staging_bytes = 0;  ///< Largest of any rank.
    std::int64_t trainer_slot_bytes = 0;
    double plan_seconds = 0;
    std::optional<CostBound> bound;
};

/// The figures of `sluice plan`.
struct PlanSummary {
    struct WorkerRank {
        int rank = 0;
        int pool = 0;
        std::int64_t bytes = 0;
        std::int64_t slices = 0;  ///< Strided pieces.
        std::int64_t chunks = 0;
        std::map<int, std::int64_t> from;  ///< Bytes by trainer rank.
    };
    struct TrainerRank {
        int rank = 0;
        std::int64_t owned_bytes = 0;   ///< Of checkpoint tensors that it can serve.
        std::int64_t served_bytes = 0;  ///< To all workers.
    };
    SummaryFacts facts;
    std::size_t tensors = 0;
    std::int64_t model_bytes = 0;
    std::int64_t pulled_bytes = 0;  ///< Over all workers, in wire dtype; equals the sum over paths.
    std::int64_t direct_bytes = 0;
    std::int64_t packed_bytes = 0;
    std::int64_t mapped_bytes = 0;
    std::vector<WorkerRank> worker_ranks;    // by rank
    std::vector<TrainerRank> trainer_ranks;  // by rank
    std::uint64_t fingerprint = 0;
    std::int64_t plan_bytes = 0;  ///< Largest encoded plan that any rank receives.
};

PlanSummary summarize(const Catalogue& catalogue, std::span<const Ownership> owners, const Plan& plan,
                      SummaryFacts facts);

/// The object that `sluice plan --json` writes (schema 1).
nlohmann::json to_json(const PlanSummary& summary);

/// A short table for people; ends in a newline.
std::string to_table(const PlanSummary& summary);

/// "1.50 GB": decimal units, three digits.
std::string human_bytes(std::int64_t bytes);

}  // namespace sluice

#include "planner/plan_summary.h"

#include "planner/plan_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace sluice {
namespace {

// Lines per side in the table for people.
constexpr std::size_t kTableRows = 8;

std::int64_t region_bytes(const Catalogue& catalogue, const OwnedRegion& region) {
    std::int64_t bytes = size_of(catalogue[region.tensor].dtype);
    for (std::size_t d = 0; d < region.begin.size(); ++d) {
        bytes *= region.end[d] - region.begin[d];
    }
    return bytes;
}

void add_route(const Route& route, int pool, PlanSummary& out) {
    PlanSummary::WorkerRank rank;
    rank.pool = pool;
    const auto readers = static_cast<std::int64_t>(route.workers.size());
    for (const Chunk& chunk : route.chunks) {
        rank.bytes += chunk.wire_bytes;
        rank.slices += static_cast<std::int64_t>(chunk.pieces.size());
        rank.from[chunk.owner] += chunk.wire_bytes;
        std::int64_t& path = chunk.path == Path::kDirect   ? out.direct_bytes
                             : chunk.path == Path::kPacked ? out.packed_bytes
                                                           : out.mapped_bytes;
        path += chunk.wire_bytes * readers;
        out.trainer_ranks[static_cast<std::size_t>(chunk.owner)].served_bytes += chunk.wire_bytes * readers;
    }
    rank.chunks = static_cast<std::int64_t>(route.chunks.size());
    out.pulled_bytes += rank.bytes * readers;
    for (const int worker : route.workers) {
        rank.rank = worker;
        out.worker_ranks.push_back(rank);
    }
}

}  // namespace

PlanSummary summarize(const Catalogue& catalogue, std::span<const Ownership> owners, const Plan& plan,
                      SummaryFacts facts) {
    PlanSummary out;
    out.facts = std::move(facts);
    out.tensors = catalogue.size();
    out.model_bytes = catalogue.bytes();
    out.fingerprint = plan.fingerprint;
    for (std::size_t rank = 0; rank < owners.size(); ++rank) {
        PlanSummary::TrainerRank trainer{static_cast<int>(rank), 0, 0};
        for (const OwnedRegion& region : owners[rank].regions) {
            trainer.owned_bytes += region_bytes(catalogue, region);
        }
        out.trainer_ranks.push_back(trainer);
    }
    for (std::size_t d = 0; d < plan.routes.size(); ++d) {
        const std::vector<int>& pools = out.facts.pool_of_demand;
        add_route(plan.routes[d], d < pools.size() ? pools[d] : 0, out);
        out.plan_bytes = std::max(out.plan_bytes, static_cast<std::int64_t>(encode_route(plan.routes[d]).size()));
    }
    std::sort(out.worker_ranks.begin(), out.worker_ranks.end(),
              [](const auto& a, const auto& b) { return a.rank < b.rank; });
    for (const OwnerRoute& served : owner_routes(plan, static_cast<int>(owners.size()))) {
        out.plan_bytes = std::max(out.plan_bytes, static_cast<std::int64_t>(encode_owner_route(served).size()));
    }
    return out;
}

nlohmann::json to_json(const PlanSummary& s) {
    using nlohmann::json;
    json workers = json::array();
    for (const PlanSummary::WorkerRank& rank : s.worker_ranks) {
        json from = json::object();
        for (const auto& [trainer, bytes] : rank.from) {
            from[std::to_string(trainer)] = bytes;
        }
        workers.push_back({{"rank", rank.rank},
                           {"pool", rank.pool},
                           {"bytes", rank.bytes},
                           {"slices", rank.slices},
                           {"chunks", rank.chunks},
                           {"from", std::move(from)}});
    }
    json trainers = json::array();
    for (const PlanSummary::TrainerRank& rank : s.trainer_ranks) {
        trainers.push_back(
            {{"rank", rank.rank}, {"owned_bytes", rank.owned_bytes}, {"served_bytes", rank.served_bytes}});
    }
    json out = {
        {"schema", 1},
        {"model", {{"name", s.facts.model_name}, {"tensors", s.tensors}, {"bytes", s.model_bytes}}},
        {"trainers", s.trainer_ranks.size()},
        {"workers", s.facts.workers},
        {"bytes",
         {{"pulled", s.pulled_bytes},
          {"overread", 0},
          {"by_path", {{"direct", s.direct_bytes}, {"packed", s.packed_bytes}, {"mapped", s.mapped_bytes}}}}},
        {"worker_ranks", std::move(workers)},
        {"trainer_ranks", std::move(trainers)},
        {"coverage",
         {{"holes", s.facts.holes},
          {"overlaps", s.facts.overlaps},
          {"padding_bytes", s.facts.padding_bytes},
          {"unread_tensors", s.facts.unread_tensors},
          {"refused", s.facts.refused}}},
        {"memory", {{"worker_staging", s.facts.worker_staging_bytes}, {"trainer_slots", s.facts.trainer_slot_bytes}}},
        {"digest", fmt::format("{:016x}", s.fingerprint)},
        {"plan_seconds", s.facts.plan_seconds},
        {"plan_bytes", s.plan_bytes},
    };
    if (s.facts.bound) {
        const CostBound& b = *s.facts.bound;
        out["bound"] = {{"ingress_s", b.ingress_s},
                        {"egress_s", b.egress_s},
                        {"wire_s", b.wire_s},
                        {"predicted_s", b.predicted_s},
                        {"worst_link", b.worst_link}};
    }
    return out;
}

std::string human_bytes(std::int64_t bytes) {
    constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
        value /= 1000;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} B", bytes)
                     : fmt::format("{:.{}f} {}", value,
                                   value < 9.995   ? 2
                                   : value < 99.95 ? 1
                                                   : 0,
                                   kUnits[unit]);
}

std::string to_table(const PlanSummary& s) {
    std::string out;
    const auto line = [&](const char* what, const std::string& value) {
        out += fmt::format("{:<12} {}\n", what, value);
    };
    line("model", fmt::format("{}: {} tensors, {}", s.facts.model_name, s.tensors, human_bytes(s.model_bytes)));
    line("ranks", fmt::format("{} trainers, {} workers", s.trainer_ranks.size(), s.facts.workers));
    line("pulled", fmt::format("{} in all: {} direct, {} packed, {} mapped", human_bytes(s.pulled_bytes),
                               human_bytes(s.direct_bytes), human_bytes(s.packed_bytes), human_bytes(s.mapped_bytes)));
    line("coverage", fmt::format("{} holes, {} overlaps, {} filled, {} tensors read by nobody", s.facts.holes,
                                 s.facts.overlaps, human_bytes(s.facts.padding_bytes), s.facts.unread_tensors.size()));
    line("memory", fmt::format("staging {} per worker, slots {} per trainer", human_bytes(s.facts.worker_staging_bytes),
                               human_bytes(s.facts.trainer_slot_bytes)));
    line("plan", fmt::format("{:016x}, made in {:.3f} s, at most {} per rank", s.fingerprint, s.facts.plan_seconds,
                             human_bytes(s.plan_bytes)));
    if (s.facts.bound) {
        const CostBound& b = *s.facts.bound;
        line("time", fmt::format("{:.3g} s expected; the wire needs {:.3g} s (in {:.3g}, out {:.3g}), set by {}",
                                 b.predicted_s, b.wire_s, b.ingress_s, b.egress_s, b.worst_link));
    }
    for (const std::string& refused : s.facts.refused) {
        line("refused", refused);
    }
    out += fmt::format("\n{:>8} {:>6} {:>10} {:>8} {:>8} {:>8}\n", "worker", "pool", "bytes", "slices", "chunks",
                       "owners");
    for (std::size_t i = 0; i < std::min(kTableRows, s.worker_ranks.size()); ++i) {
        const auto& r = s.worker_ranks[i];
        out += fmt::format("{:>8} {:>6} {:>10} {:>8} {:>8} {:>8}\n", r.rank, r.pool, human_bytes(r.bytes), r.slices,
                           r.chunks, r.from.size());
    }
    if (s.worker_ranks.size() > kTableRows) {
        out += fmt::format("{:>8} {} more, all in --json\n", "...", s.worker_ranks.size() - kTableRows);
    }
    out += fmt::format("\n{:>8} {:>10} {:>10}\n", "trainer", "owns", "serves");
    for (std::size_t i = 0; i < std::min(kTableRows, s.trainer_ranks.size()); ++i) {
        const auto& r = s.trainer_ranks[i];
        out += fmt::format("{:>8} {:>10} {:>10}\n", r.rank, human_bytes(r.owned_bytes), human_bytes(r.served_bytes));
    }
    if (s.trainer_ranks.size() > kTableRows) {
        out += fmt::format("{:>8} {} more, all in --json\n", "...", s.trainer_ranks.size() - kTableRows);
    }
    return out;
}

}  // namespace sluice

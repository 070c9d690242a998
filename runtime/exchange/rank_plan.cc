#include "runtime/exchange/rank_plan.h"

#include "runtime/exchange/agreement.h"
#include "runtime/exchange/catalogue_agreement.h"
#include "runtime/exchange/setup_codec.h"
#include "runtime/services/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>

namespace sluice {
namespace {

constexpr int kRouter = 0;
// Shorter runs are packed on the GPU, where a get costs more than on a processor and packing less.
constexpr std::int64_t kDirectRunOnDevice = 1 << 20;

std::string name_of(const RankInput& input) {
    return fmt::format("{} {}", input.trainer ? "trainer" : "worker", input.own_rank);
}

// Own ranks of one side, by world rank, must count 0, 1, 2, ... without gaps or repeats.
Status place(std::vector<int>& side, int own_rank, int world_rank, const char* what) {
    if (own_rank < 0 || static_cast<std::size_t>(own_rank) >= side.size() ||
        side[static_cast<std::size_t>(own_rank)] >= 0) {
        return invalid_argument(fmt::format("{} rank {} (world rank {}) does not count from 0 without gaps among {}",
                                            what, own_rank, world_rank, side.size()));
    }
    side[static_cast<std::size_t>(own_rank)] = world_rank;
    return ok_status();
}

// A gathering rank copies its own shards itself: it is no consumer of its own.
OwnerRoute served_to_others(OwnerRoute route, int own_rank) {
    std::erase_if(route.demands,
                  [own_rank](const ServedDemand& demand) { return demand.workers == std::vector<int>{own_rank}; });
    std::erase_if(route.group_order, [&](GroupId group) {
        return std::none_of(route.demands.begin(), route.demands.end(), [group](const ServedDemand& demand) {
            return std::any_of(demand.chunks.begin(), demand.chunks.end(),
                               [group](const ServedChunk& chunk) { return chunk.group == group; });
        });
    });
    return route;
}

/// What the router makes of all inputs.
class Compiler {
public:
    Compiler(const Catalogue& catalogue, const RouteOptions& options, std::vector<RankInput> inputs)
        : catalogue_(catalogue), options_(options), inputs_(std::move(inputs)) {}

    Result<std::vector<RankPlan>> run() {
        SLUICE_RETURN_IF_ERROR(place_ranks());
        SLUICE_RETURN_IF_ERROR(decide_staging());
        decide_gather();
        SLUICE_RETURN_IF_ERROR(route_sync());
        SLUICE_RETURN_IF_ERROR(route_gather_flow());
        std::random_device entropy;
        const std::uint64_t session = (static_cast<std::uint64_t>(entropy()) << 32) | entropy();
        std::vector<RankPlan> plans;
        for (const RankInput& input : inputs_) {
            RankPlan plan;
            plan.session = session;
            plan.fingerprint = sync_.fingerprint;
            plan.staged = staged_;
            plan.trainers = trainers_;
            plan.workers = workers_;
            if (input.trainer) {
                plan.owner_route = owner_route(sync_, input.own_rank);
                if (gather_) {
                    plan.gathers_by_group = gathers_by_group_;
                    plan.group_order = sync_.group_order;
                    plan.gather_route = gather_->routes[static_cast<std::size_t>(input.own_rank)];
                    plan.gather_owner_route = served_to_others(owner_route(*gather_, input.own_rank), input.own_rank);
                }
            } else {
                plan.route =
                    sync_.routes[static_cast<std::size_t>(demand_of_worker_[static_cast<std::size_t>(input.own_rank)])];
            }
            plans.push_back(std::move(plan));
        }
        return plans;
    }

private:
    // One rule for the whole session: slots and staging are then of one kind everywhere.
    Status decide_staging() {
        const auto on_device = [](const RankInput& input) { return input.device_memory; };
        const bool any = std::any_of(inputs_.begin(), inputs_.end(), on_device);
        const bool all = std::all_of(inputs_.begin(), inputs_.end(), on_device);
        const bool out_of_reach =
            std::any_of(inputs_.begin(), inputs_.end(), [](const RankInput& input) { return input.staged; });
        staged_ = any && (!all || out_of_reach);
        if (staged_) {
            using enum RouteOptions::PathChoice;
            if (options_.path == kDirect || options_.path == kMapped) {
                return plan_refused(fmt::format(
                    "path {} was asked for, but GPU memory is staged here ({}), where everything is packed; leave the "
                    "path to the planner",
                    options_.path == kDirect ? "direct" : "mapped",
                    all ? "asked for, or out of reach of other processes" : "one side has host memory"));
            }
            options_.path = kPacked;
        } else if (any) {
            options_.direct_run = kDirectRunOnDevice;
        }
        return ok_status();
    }

    // An exchange is collective: all use their group or none does.
    void decide_gather() {
        const RankInput* without = nullptr;
        bool any = false;
        for (const RankInput& input : inputs_) {
            if (input.gather) {
                any = any || input.group != RankInput::Group::kNone;
                without = without == nullptr && input.group != RankInput::Group::kGood ? &input : without;
            }
        }
        gathers_by_group_ = any && without == nullptr;
        if (any && without != nullptr) {
            log::warning("groups are gathered by pulls: {}; give all trainers a new group",
                         without->group == RankInput::Group::kNone
                             ? fmt::format("{} was given no group to gather with", name_of(*without))
                             : fmt::format("the group that {} was given has failed before", name_of(*without)));
        }
    }

    Status place_ranks() {
        const auto trainer_count = static_cast<std::size_t>(
            std::count_if(inputs_.begin(), inputs_.end(), [](const RankInput& input) { return input.trainer; }));
        trainers_.assign(trainer_count, -1);
        workers_.assign(inputs_.size() - trainer_count, -1);
        for (std::size_t rank = 0; rank < inputs_.size(); ++rank) {
            const RankInput& input = inputs_[rank];
            SLUICE_RETURN_IF_ERROR(place(input.trainer ? trainers_ : workers_, input.own_rank, static_cast<int>(rank),
                                         input.trainer ? "trainer" : "worker"));
        }
        return ok_status();
    }

    Status route_sync() {
        std::vector<Ownership> owners;
        for (const int rank : trainers_) {
            owners.push_back(inputs_[static_cast<std::size_t>(rank)].ownership);
        }
        std::map<int, std::size_t> request_of_key;
        std::vector<DemandRequest> requests;
        demand_of_worker_.resize(workers_.size());
        for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
            const RankInput& input = inputs_[static_cast<std::size_t>(workers_[worker])];
            const auto [at, is_new] = request_of_key.try_emplace(input.demand_key, requests.size());
            if (is_new) {
                if (!input.demand) {
                    return internal_error(fmt::format("worker {} is the first with demand key {} and gave no demand",
                                                      worker, input.demand_key));
                }
                requests.push_back({&*input.demand, {}, {}});
            } else if (const int first = requests[at->second].workers.front();
                       input.demand &&
                       input.demand_digest !=
                           inputs_[static_cast<std::size_t>(workers_[static_cast<std::size_t>(first)])].demand_digest) {
                return invalid_argument(fmt::format(
                    "worker {} wants other weights than worker {}, of which it is a replica; give both the same "
                    "--worker, --expert-map and --set",
                    worker, first));
            }
            requests[at->second].workers.push_back(static_cast<int>(worker));
            demand_of_worker_[worker] = static_cast<DemandId>(at->second);
        }
        for (DemandRequest& request : requests) {
            request.mapped_owners = staged_ ? std::vector<int>{} : mapped_owners(request.workers);
        }
        SLUICE_ASSIGN_OR_RETURN(sync_, route(catalogue_, owners, requests, options_));
        return ok_status();
    }

    // The trainers whose memory all of `workers` can map.
    [[nodiscard]] std::vector<int> mapped_owners(const std::vector<int>& workers) const {
        std::vector<int> owners;
        for (std::size_t trainer = 0; trainer < trainers_.size(); ++trainer) {
            const std::string& host = inputs_[static_cast<std::size_t>(trainers_[trainer])].mappable_on;
            if (!host.empty() && std::all_of(workers.begin(), workers.end(), [&](int worker) {
                    const int rank = workers_[static_cast<std::size_t>(worker)];
                    return inputs_[static_cast<std::size_t>(rank)].mappable_on == host;
                })) {
                owners.push_back(static_cast<int>(trainer));
            }
        }
        return owners;
    }

    // Each gathering trainer is a demand of its own on its peers' shards, for those groups of which it serves anything.
    Status route_gather_flow() {
        std::vector<Ownership> shards;
        std::vector<GatherDemand> demands;
        bool any = false;
        for (std::size_t trainer = 0; trainer < trainers_.size(); ++trainer) {
            std::optional<RankInput::Gather>& gather = inputs_[static_cast<std::size_t>(trainers_[trainer])].gather;
            any = any || gather.has_value();
            shards.push_back(gather ? std::move(gather->shards) : Ownership{});
            GatherDemand& demand = demands.emplace_back(gather ? std::move(gather->demand) : GatherDemand{});
            const OwnerRoute served = owner_route(sync_, static_cast<int>(trainer));
            for (Demand* part : {&demand.dense, &demand.experts}) {
                std::erase_if(part->records, [&](const CopyRecord& record) {
                    const GroupId group = catalogue_[record.tensor].group;
                    return std::find(served.group_order.begin(), served.group_order.end(), group) ==
                           served.group_order.end();
                });
            }
        }
        if (any) {
            SLUICE_ASSIGN_OR_RETURN(gather_, route_gather(catalogue_, shards, demands, options_));
        }
        return ok_status();
    }

    const Catalogue& catalogue_;
    RouteOptions options_;
    bool staged_ = false;
    bool gathers_by_group_ = false;
    std::vector<RankInput> inputs_;
    std::vector<int> trainers_;
    std::vector<int> workers_;
    std::vector<DemandId> demand_of_worker_;
    Plan sync_;
    std::optional<Plan> gather_;
};

// Rank 0: the plan of every rank, or the one failure that all are told.
Result<std::vector<RankPlan>> compile(Bootstrap& bootstrap, const Catalogue& catalogue, const RouteOptions& options,
                                      const std::vector<Bootstrap::Blob>& blobs, Deadline deadline) {
    std::vector<RankInput> inputs;
    for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
        auto decoded = decode_input(blobs[rank], catalogue);
        if (!decoded.ok()) {
            return decoded.status().with_context(fmt::format("rank {}", rank));
        }
        if (const Status& theirs = decoded->input.status; !theirs.ok()) {
            return theirs.with_context(name_of(decoded->input));
        }
        if (decoded->catalogue_digest != catalogue.digest()) {
            const std::string name = name_of(decoded->input);
            SLUICE_ASSIGN_OR_RETURN(
                const std::string difference,
                ask_for_difference(bootstrap, kRouter, catalogue, static_cast<int>(rank), name, deadline));
            return invalid_argument(
                fmt::format("{} has another catalogue (digest {:016x}) than rank 0 ({:016x}): {}; give all ranks the "
                            "same --model and --set",
                            name, decoded->catalogue_digest, catalogue.digest(), difference));
        }
        // Slots and staging are made for chunks of the rank's own size.
        if (decoded->chunk_bytes != options.chunk_bytes) {
            return invalid_argument(
                fmt::format("{} has chunks of {} bytes and rank 0 of {}; give all ranks the same --chunk-bytes "
                            "(SLUICE_CHUNK_BYTES)",
                            name_of(decoded->input), decoded->chunk_bytes, options.chunk_bytes));
        }
        inputs.push_back(std::move(decoded->input));
    }
    return Compiler(catalogue, options, std::move(inputs)).run();
}

}  // namespace

Result<RankPlan> compile_rank_plan(Bootstrap& bootstrap, const Catalogue& catalogue, const RankInput& input,
                                   const RouteOptions& options, Deadline deadline) {
    SLUICE_ASSIGN_OR_RETURN(
        const auto inputs,
        bootstrap.gather(kRouter, encode_input(input, catalogue.digest(), options.chunk_bytes), deadline));
    Result<Bootstrap::Blob> received = internal_error("nothing received");
    if (bootstrap.rank() == kRouter) {
        const auto plans = compile(bootstrap, catalogue, options, inputs, deadline);
        std::vector<Bootstrap::Blob> outputs;
        for (int rank = 0; rank < bootstrap.size(); ++rank) {
            outputs.push_back(plans.ok() ? encode_rank_plan((*plans)[static_cast<std::size_t>(rank)])
                                         : encode_rank_plan(plans.status()));
        }
        received = bootstrap.scatter(kRouter, outputs, deadline);
    } else {
        received = receive_answering(bootstrap, kRouter, catalogue, deadline);
    }
    SLUICE_ASSIGN_OR_RETURN(const auto mine, std::move(received));
    auto plan = decode_rank_plan(mine, input, catalogue, options.chunk_bytes);
    // One rank alone may refuse its part; the others would wait for it in the next collective.
    SLUICE_RETURN_IF_ERROR(agree_on_status(bootstrap, plan.status(), deadline));
    plan->wire_bytes = static_cast<std::int64_t>(mine.size());
    return plan;
}

}  // namespace sluice

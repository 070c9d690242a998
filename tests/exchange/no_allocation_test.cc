// From the second version on a sync takes no heap memory of ours, registers nothing and lets no pool grow. A program of its own,
// since it replaces operator new.
#include "tests/exchange/sync_bed.h"
#include "tests/services/counted_new.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <optional>

namespace sluice::test {
namespace {

using PathChoice = RouteOptions::PathChoice;

struct SteadyCase {
    Network network;
    SourceKind source;
    PathChoice path;
    bool trace = false;
    bool layers = false;  ///< Matrices land in layer buffers.
};

std::string name_of(const SteadyCase& c) {
    return to_string(c.network) + (c.source == SourceKind::kResident ? "_resident_" : "_gathered_") +
           (c.path == PathChoice::kPacked ? "packed" : "direct") + (c.trace ? "_traced" : "") +
           (c.layers ? "_layers" : "");
}
void PrintTo(const SteadyCase& c, std::ostream* out) { *out << name_of(c); }

class SteadySyncTest : public testing::TestWithParam<SteadyCase> {};

// Allocations of all threads from the moment that every rank is about to call sync() until the last call has returned.
int allocations_of_sync(SyncBed& bed, std::uint64_t version) {
    std::optional<AllocationCount> counter;
    int counted = -1;
    std::barrier start(bed.size(), [&]() noexcept { counter.emplace(); });
    std::barrier stop(bed.size(), [&]() noexcept {
        counted = counter->so_far();
        counter.reset();
    });
    std::vector<Status> statuses(static_cast<std::size_t>(bed.size()));
    bed.each_rank([&](BedRank& rank) {
        rank.prepare(version);
        start.arrive_and_wait();
        Status status = rank.sync(version);
        stop.arrive_and_wait();
        statuses[static_cast<std::size_t>(rank.world_rank())] = std::move(status);
    });
    for (const Status& status : statuses) {
        EXPECT_TRUE(status.ok()) << status.message();
    }
    return counted;
}

class CountingHook final : public LayerHook {
public:
    Status prepare(LayerAddresses /*addresses*/, Device* /*device*/) override { return ok_status(); }
    Status run(const LandedLayer& layer) override {
        parameters += static_cast<int>(layer.parameters.size());
        return ok_status();
    }
    std::atomic<int> parameters{0};
};

std::int64_t packed_chunks(const OwnerRoute& route) {
    std::int64_t chunks = 0;
    for (const ServedDemand& demand : route.demands) {
        for (const ServedChunk& chunk : demand.chunks) {
            chunks += chunk.path == Path::kPacked ? static_cast<std::int64_t>(demand.workers.size()) : 0;
        }
    }
    return chunks;
}

// What a flow may send in a version, both ways: per consumer one kBegin, and per group kHashes, kPublish and kRelease, and kOpen with layer buffers;
// per packed chunk kPacked and kSlotRead.
std::int64_t most_messages(const OwnerRoute& route, bool layers = false) {
    std::int64_t messages = 2 * packed_chunks(route);
    for (const ServedDemand& demand : route.demands) {
        const auto consumers = static_cast<std::int64_t>(demand.workers.size());
        messages += consumers * (1 + (layers ? 4 : 3) * static_cast<std::int64_t>(route.group_order.size()));
    }
    return messages;
}

std::int64_t registrations(SyncBed& bed) {
    std::int64_t sum = 0;
    for (int rank = 0; rank < bed.size(); ++rank) {
        sum += bed.rank(rank).session().registrations();
    }
    return sum;
}
std::int64_t growth(SyncBed& bed) {
    std::int64_t sum = 0;
    for (int rank = 0; rank < bed.size(); ++rank) {
        sum += bed.rank(rank).session().pool_growth();
    }
    return sum;
}
std::int64_t messages(SyncBed& bed) {
    std::int64_t sum = 0;
    for (int rank = 0; rank < bed.size(); ++rank) {
        sum += bed.rank(rank).session().messages_sent();
    }
    return sum;
}

TEST_P(SteadySyncTest, LaterVersionsTakeNothing) {
    BedOptions options;
    options.trainer = "tp=2";
    options.workers = {"tp=2"};
    options.source = GetParam().source;
    options.route.path = GetParam().path;
    options.trace = GetParam().trace;
    options.settings.heartbeat_interval = std::chrono::minutes(10);  // their number depends on how long a sync takes
    options.settings.heartbeat_dead_after = std::chrono::minutes(30);
    SyncBed bed(options, GetParam().network);
    CountingHook hook;
    for (int w = 0; GetParam().layers && w < bed.model().workers; ++w) {
        bed.worker(w).buffered = [&hook](BedRank& rank) {
            rank.hooks.layers = {&hook};
            std::vector<ParameterId> matrices;
            for (std::size_t i = 0; i < rank.demand().parameters.size(); ++i) {
                if (rank.demand().parameters[i].name.ends_with("_proj.weight")) {
                    matrices.push_back(static_cast<ParameterId>(i));
                }
            }
            return matrices;
        };
    }
    bed.create();
    bed.sync(1);
    std::int64_t most = 2 * bed.size();  // report and verdict
    std::int64_t packed = 0;
    for (int t = 0; t < bed.model().trainers; ++t) {
        const RankPlan& plan = bed.trainer(t).trainer().plan();
        most += most_messages(plan.owner_route, GetParam().layers) + most_messages(plan.gather_owner_route);
        packed += packed_chunks(plan.owner_route);
    }
    EXPECT_EQ(packed > 0, GetParam().path == PathChoice::kPacked);
    for (std::uint64_t version = 2; version <= 4; ++version) {
        const std::int64_t registered = registrations(bed);
        const std::int64_t grown = growth(bed);
        const std::int64_t sent = messages(bed);
        EXPECT_EQ(allocations_of_sync(bed, version), 0) << "version " << version;
        EXPECT_EQ(registrations(bed), registered);
        EXPECT_EQ(growth(bed), grown);
        EXPECT_LE(messages(bed) - sent, most);
        EXPECT_GT(messages(bed) - sent, bed.size());
        bed.expect_right(version);
    }
    EXPECT_EQ(hook.parameters > 0, GetParam().layers);
    for (int rank = 0; GetParam().trace && rank < bed.size(); ++rank) {
        const TraceLog log = bed.rank(rank).session().trace()->log();
        EXPECT_GT(log.events.size(), 0U);
        EXPECT_EQ(log.left_out, 0U);
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, SteadySyncTest,
                         testing::Values(SteadyCase{Network::kUcxCma, SourceKind::kResident, PathChoice::kDirect},
                                         SteadyCase{Network::kUcxCma, SourceKind::kResident, PathChoice::kPacked},
                                         SteadyCase{Network::kUcxCma, SourceKind::kGathered, PathChoice::kDirect},
                                         SteadyCase{Network::kUcxCma, SourceKind::kGathered, PathChoice::kPacked},
                                         SteadyCase{Network::kUcxCma, SourceKind::kGathered, PathChoice::kPacked,
                                                    /*trace=*/true},
                                         SteadyCase{Network::kUcxCma, SourceKind::kGathered, PathChoice::kPacked,
                                                    /*trace=*/false, /*layers=*/true},
                                         SteadyCase{Network::kUcxTcp, SourceKind::kResident, PathChoice::kDirect},
                                         SteadyCase{Network::kUcxTcp, SourceKind::kGathered, PathChoice::kPacked}),
                         [](const auto& instance) { return name_of(instance.param); });

TEST(SteadySyncTest, AllocationsAreCounted) {
    const AllocationCount count;
    // Kept from the optimiser, which may leave out a pair of new and delete.
    int* volatile kept = new int(1);
    delete kept;
    EXPECT_GE(count.so_far(), 1);
}

}  // namespace
}  // namespace sluice::test

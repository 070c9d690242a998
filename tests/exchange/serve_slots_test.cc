#include "runtime/exchange/serve_slots.h"

#include "tests/exchange/sync_bed.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using namespace std::chrono_literals;
using test::BedOptions;
using test::SyncBed;

// Trainers with fewer slots than peers gather from them. Two of them are slow to read from one owner each, so that others come to the next groups there
// long before they do: if those kept the slots for groups that they have no buffer for yet, the slow ones would wait for each other.
// Chunks of these sizes for one rank each; the last ones of the second demand are read in place.
OwnerRoute two_readers() {
    const auto packed = [](std::int64_t bytes) { return ServedChunk{0, 0, Path::kPacked, bytes, {}}; };
    OwnerRoute route;
    route.demands.push_back({0, {0}, {packed(1000), packed(700), packed(10)}});
    route.demands.push_back({1, {1}, {packed(10), {1, 0, Path::kDirect, 5000, {}}}});
    return route;
}

TEST(ServeSlots, AreNoMoreThanReadersHaveChunksAndNoMoreThanTheirMemory) {
    BedOptions options;
    options.settings.set_chunk_bytes(4096);
    for (const auto& [slots, bytes] : {std::pair{1, 4 * 1024}, {2, 6 * 1024}, {1000, 6 * 1024}}) {
        options.settings.slots = slots;
        SyncBed bed(options);
        bed.create();
        const Result<ServeSlots> made = ServeSlots::create(bed.rank(0).session(), two_readers(), nullptr, false);
        ASSERT_TRUE(made.ok()) << made.status().message();
        EXPECT_EQ(made->bytes(), bytes) << slots << " chunks of 4 KiB";
    }
}

TEST(ServeSlots, OfWhatIsReadInPlaceThereAreNone) {
    SyncBed bed({});
    bed.create();
    OwnerRoute route;
    route.demands.push_back({0, {0}, {{0, 0, Path::kDirect, 5000, {}}}});
    const Result<ServeSlots> made = ServeSlots::create(bed.rank(0).session(), route, nullptr, false);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->bytes(), 0);
}

TEST(ServeSlots, FewerThanGatheringPeersDoNotDeadlock) {
    BedOptions options;
    options.trainer = "fsdp=4";
    options.workers = {"tp=1"};
    options.source = SourceKind::kGathered;
    options.route = {.chunk_bytes = 512, .path = RouteOptions::PathChoice::kPacked};
    options.settings.slots = 2;
    options.settings.credit = 1;
    options.settings.sync_timeout = 20s;
    SyncBed bed(options);
    const transport::FakeLink slow{.latency = 2ms};
    bed.create();
    bed.fabric().set_link(bed.fake_id(1), bed.fake_id(2), slow);
    bed.fabric().set_link(bed.fake_id(3), bed.fake_id(0), slow);
    for (std::uint64_t version = 1; version <= 3 && !HasFailure(); ++version) {
        bed.sync(version);
    }
}

}  // namespace
}  // namespace sluice

#include "tests/exchange/sync_bed.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using namespace std::chrono_literals;
using test::BedOptions;
using test::SyncBed;

// Trainers with fewer slots than peers gather from them. Two of them are slow to read from one owner each, so that others come to the next groups there
// long before they do: if those kept the slots for groups that they have no buffer for yet, the slow ones would wait for each other.
TEST(GatherSlots, FewerThanGatheringPeersDoNotDeadlock) {
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

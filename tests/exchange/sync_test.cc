// Whole syncs: one body over the in-process network and over UCX, layouts against each other, three versions each.
#include "tests/exchange/sync_bed.h"
#include "tests/support/log_guard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

namespace sluice::test {
namespace {

using PathChoice = RouteOptions::PathChoice;

const char* name_of(PathChoice path) {
    switch (path) {
        case PathChoice::kAuto:
            return "auto";
        case PathChoice::kDirect:
            return "direct";
        case PathChoice::kPacked:
            return "packed";
        case PathChoice::kMapped:
            return "mapped";
    }
    return "unknown";
}

void three_versions(SyncBed& bed) {
    bed.create();
    for (std::uint64_t version = 1; version <= 3 && !testing::Test::HasFailure(); ++version) {
        bed.sync(version);
    }
}

class SyncOverTest : public testing::TestWithParam<std::tuple<Network, SourceKind, PathChoice>> {};

TEST_P(SyncOverTest, ThreeVersionsAreExact) {
    const auto [network, source, path] = GetParam();
    BedOptions options;
    options.trainer = "tp=2";
    options.workers = {"tp=2,ep=on"};
    options.source = source;
    options.route.path = path;
    SyncBed bed(options, network);
    three_versions(bed);
    for (int worker = 0; worker < bed.model().workers; ++worker) {
        const auto links = bed.worker(worker).worker().links();
        EXPECT_FALSE(links.empty());
        for (const auto& [trainer, link] : links) {
            EXPECT_EQ(link.link_class, expected_class(network)) << link.transport << " to trainer " << trainer;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Networks, SyncOverTest,
                         testing::Combine(testing::ValuesIn(all_networks()),
                                          testing::Values(SourceKind::kResident, SourceKind::kGathered),
                                          testing::Values(PathChoice::kDirect, PathChoice::kPacked, PathChoice::kAuto)),
                         [](const auto& instance) {
                             return to_string(std::get<0>(instance.param)) +
                                    (std::get<1>(instance.param) == SourceKind::kResident ? "_resident_"
                                                                                          : "_gathered_") +
                                    name_of(std::get<2>(instance.param));
                         });

struct LayoutCase {
    std::string name;
    std::string trainer;
    std::vector<std::string> workers;
};

class SyncLayoutTest : public testing::TestWithParam<std::tuple<LayoutCase, SourceKind>> {};

TEST_P(SyncLayoutTest, ThreeVersionsAreExact) {
    const auto& [layout, source] = GetParam();
    BedOptions options;
    options.trainer = layout.trainer;
    options.workers = layout.workers;
    options.source = source;
    SyncBed bed(options);
    three_versions(bed);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SyncLayoutTest,
    testing::Combine(testing::Values(LayoutCase{"one_to_one", "tp=1", {"tp=1"}},  //
                                     LayoutCase{"tp4_to_tp1", "tp=4", {"tp=1"}},  //
                                     LayoutCase{"tp1_to_tp4", "tp=1", {"tp=4"}},  //
                                     LayoutCase{"pp3_to_tp2", "pp=3", {"tp=2"}},  //
                                     LayoutCase{"ep_to_ep_replicas", "tp=2,pp=2,ep=2", {"tp=2,ep=on,replicas=2"}},
                                     LayoutCase{"etp_to_dp", "tp=2,ep=1,etp=2", {"tp=1,dp=2,ep=on"}},
                                     LayoutCase{"dp_to_pools", "tp=1,dp=2,ep=2", {"tp=2", "tp=1,replicas=2"}},
                                     LayoutCase{"three_to_two", "pp=3", {"tp=1,replicas=2"}},
                                     LayoutCase{"fsdp", "fsdp=3", {"tp=2"}}),
                     testing::Values(SourceKind::kResident, SourceKind::kGathered)),
    [](const auto& instance) {
        return std::get<0>(instance.param).name +
               (std::get<1>(instance.param) == SourceKind::kResident ? "_resident" : "_gathered");
    });

// GLM keeps its router in fp32 where the checkpoint has bf16: the wire carries bf16, the worker widens.
TEST(SyncConversionTest, DeclaredConversionsArrive) {
    BedOptions options;
    options.model = "GLM-4.5-Air";
    options.fields = {{"num_hidden_layers", "3"},      {"hidden_size", "64"},     {"num_attention_heads", "8"},
                      {"num_key_value_heads", "2"},    {"vocab_size", "250"},     {"intermediate_size", "96"},
                      {"moe_intermediate_size", "32"}, {"n_routed_experts", "8"}, {"head_dim", "8"}};
    options.workers = {"tp=2,ep=on"};
    SyncBed bed(options);
    const auto converts = [](const CopyRecord& record) { return record.converts(); };
    three_versions(bed);
    const auto& records = bed.worker(0).demand().records;
    EXPECT_TRUE(std::any_of(records.begin(), records.end(), converts))
        << "the model has no conversion any more; choose another";
}

// The results must not depend on how the bytes are cut (L20).
TEST(SyncChunkTest, AnySizeOfChunkGivesTheSameBytes) {
    for (const std::int64_t chunk_bytes :
         {std::int64_t{256}, std::int64_t{1000}, std::int64_t{64} << 10, std::int64_t{4} << 20}) {
        SCOPED_TRACE(chunk_bytes);
        BedOptions options;
        options.route.chunk_bytes = chunk_bytes;
        options.settings.staging_bytes = std::max<std::int64_t>(options.settings.staging_bytes, chunk_bytes);
        SyncBed bed(options);
        bed.create();
        bed.sync(1);
    }
}

TEST(SyncChunkTest, SmallestLimitsComplete) {
    for (const SourceKind source : {SourceKind::kResident, SourceKind::kGathered}) {
        for (const PathChoice path : {PathChoice::kDirect, PathChoice::kPacked, PathChoice::kAuto}) {
            SCOPED_TRACE(name_of(path));
            BedOptions options;
            options.trainer = "pp=2,tp=2";
            options.workers = {"tp=2,replicas=2", "tp=1"};
            options.source = source;
            options.route.path = path;
            options.settings.slots = 1;
            options.settings.staging_bytes = options.route.chunk_bytes;
            options.settings.inflight_bytes = options.route.chunk_bytes;
            SyncBed bed(options);
            bed.create();
            bed.sync(1);
            bed.sync(2);
            for (int worker = 0; worker < bed.model().workers; ++worker) {
                EXPECT_LE(bed.worker(worker).worker().staging_peak(), options.settings.staging_bytes);
            }
        }
    }
}

TEST(SyncNotesTest, ANoteThatIsTooLongIsCutAndThatIsSaidOnce) {
    constexpr std::size_t kLongest = std::size_t{64} << 20;
    BedOptions options;
    options.trainer = "tp=1";
    options.workers = {"tp=1"};
    SyncBed bed(options);
    bed.create();
    const auto gather = [&] {
        std::string of_worker;
        bed.each_rank([&](BedRank& rank) {
            const auto notes =
                rank.session().gather_notes(rank.is_trainer() ? "" : "the end", Deadline::after(kPatience));
            ASSERT_TRUE(notes.status.ok()) << notes.status.message();
            if (rank.is_trainer()) {
                of_worker = notes.by_rank.at(1);
            }
        });
        return of_worker;
    };
    {
        const ExpectedLog cut("cut the note of worker 0");
        Session& session = bed.worker(0).session();
        std::size_t sent = 0;
        while (sent < kLongest + (1 << 20)) {
            session.loop().run_and_wait([&] {
                const std::vector<std::byte> part(session.links().max_payload_bytes(), std::byte{'x'});
                for (int i = 0; i < 100; ++i, sent += part.size()) {
                    Message message;
                    message.kind = MessageKind::kNote;
                    message.payload = part;
                    session.links().send(0, message);
                }
            });
            bed.trainer(0).session().loop().run_and_wait([] {});
        }
        const std::string note = gather();
        EXPECT_GT(note.size(), kLongest);
        EXPECT_LT(note.size(), kLongest + (1 << 20));
        EXPECT_EQ(cut.seen(), 1);
    }
    EXPECT_EQ(gather(), "the end");
}

TEST(SyncMappedTest, GatherBuffersAreShownToBeMappedOnlyWhereThatIsOn) {
    for (const bool mapped : {true, false}) {
        BedOptions options;
        options.source = SourceKind::kGathered;
        options.settings.mapped = mapped;
        SyncBed bed(options);
        bed.create();
        const RemoteMemory& shown = bed.worker(0).session().card(0).flows[static_cast<std::size_t>(FlowId::kSync)];
        EXPECT_FALSE(shown.gather_buffers.empty());
        for (const RemoteRegion& buffer : shown.gather_buffers) {
            EXPECT_EQ(buffer.shared.has_value(), mapped);
        }
        bed.sync(1);
    }
}

TEST(SyncVersionTest, StartsAnywhereAndSkips) {
    SyncBed bed(BedOptions{});
    bed.create();
    bed.sync(37);
    bed.sync(41);
    bed.sync(1'000'000'007);
}

TEST(SyncVersionTest, AFormerVersionIsRefusedEverywhere) {
    SyncBed bed(BedOptions{});
    bed.create();
    bed.sync(5);
    for (const std::uint64_t version : {std::uint64_t{5}, std::uint64_t{4}, std::uint64_t{0}}) {
        bed.each_rank([&](BedRank& rank) {
            const Status status = rank.sync(version);
            EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << "rank " << rank.world_rank();
            EXPECT_NE(status.message().find(std::to_string(version)), std::string::npos) << status.message();
        });
    }
    bed.expect_right(5);
    bed.sync(6);
}

}  // namespace
}  // namespace sluice::test

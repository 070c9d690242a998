// Many versions, and many ranks: what must not grow does not.
#include "tests/exchange/sync_bed.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace sluice::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Usage {
    std::int64_t resident_bytes = 0;
    std::int64_t descriptors = 0;
    std::int64_t mappings = 0;
};

Usage usage() {
    Usage out;
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages >> out.resident_bytes;
    out.resident_bytes *= 4096;
    const std::filesystem::directory_iterator descriptors("/proc/self/fd");
    out.descriptors = std::distance(begin(descriptors), end(descriptors));
    std::ifstream maps("/proc/self/maps");
    out.mappings = std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n');
    return out;
}

// O01: 200 versions from one trainer to four workers.
TEST(Cases, O01_NothingGrowsFromVersionToVersion) {
    for (const Network network : {Network::kUcxCma, Network::kUcxTcp}) {
        BedOptions options;
        options.trainer = "tp=1";
        options.workers = {"tp=2,replicas=2"};
        SyncBed bed(options, network);
        bed.create();
        Usage third;
        std::int64_t registrations = 0;
        for (std::uint64_t version = 1; version <= 200; ++version) {
            bed.sync(version);
            ASSERT_FALSE(HasFailure()) << "version " << version;
            if (version == 3) {
                third = usage();
                registrations = bed.worker(0).session().registrations();
            }
        }
        const Usage last = usage();
        EXPECT_LE(last.resident_bytes, third.resident_bytes + (4 << 20)) << "of " << third.resident_bytes;
        EXPECT_LE(last.descriptors, third.descriptors);
        EXPECT_LE(last.mappings, third.mappings + 4);  // malloc's own
        EXPECT_EQ(bed.worker(0).session().registrations(), registrations);
    }
}

// 512 trainers and 512 workers in one process: set-up within a minute, and one release per group, owner and worker.
TEST(SyncScale, SetUpOf512To512Ranks) {
    BedOptions options;
    options.trainer = "tp=2,pp=4,dp=64";
    options.workers = {"tp=2,replicas=256"};
    options.fields = {{"num_hidden_layers", "4"},
                      {"hidden_size", "16"},
                      {"num_attention_heads", "2"},
                      {"num_key_value_heads", "2"},
                      {"head_dim", "8"},
                      {"vocab_size", "32"},
                      {"num_experts", "4"},
                      {"moe_intermediate_size", "8"}};
    options.settings.heartbeat_interval = std::chrono::seconds(20);
    options.settings.heartbeat_dead_after = std::chrono::seconds(120);
    options.settings.connect_timeout = std::chrono::seconds(120);
    options.settings.sync_timeout = std::chrono::seconds(120);
    options.settings.copy_threads = 1;
    options.settings.staging_bytes = 16 * options.route.chunk_bytes;
    SyncBed bed(options);
    const auto begin = Clock::now();
    bed.create();
    ASSERT_FALSE(HasFailure());
    const double set_up_s = std::chrono::duration<double>(Clock::now() - begin).count();
    const auto messages = [&] {
        std::int64_t sum = 0;
        for (int rank = 0; rank < bed.size(); ++rank) {
            sum += bed.rank(rank).session().messages_sent();
        }
        return sum;
    };
    const std::int64_t before = messages();
    bed.sync(1);
    const std::int64_t sent = messages() - before;
    fmt::print("set-up of {} ranks: {:.1f} s; {} messages in the first version\n", bed.size(), set_up_s, sent);
    EXPECT_LE(set_up_s, 60);
    std::int64_t links = 0;
    for (int worker = 0; worker < bed.model().workers; ++worker) {
        links += static_cast<std::int64_t>(bed.worker(worker).worker().links().size());
    }
    // Per link and group: publish, hashes, release; per link one begin; a report and a verdict per rank.
    EXPECT_LE(sent, links * (3 * bed.model().catalogue.groups() + 1) + 4 * bed.size());
}

}  // namespace
}  // namespace sluice::test

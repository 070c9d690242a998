#include "cli/sync_options.h"

#include <CLI/CLI.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Result<SyncOptions> parse(std::vector<std::string> arguments, Settings& settings) {
    CLI::App app;
    SyncOptionsParser parser;
    parser.add_to(app);
    for (const char* needed : {"--model=Qwen3-8B", "--trainer=tp=2,dp=2", "--worker=tp=2,ep=on,replicas=2"}) {
        arguments.emplace_back(needed);
    }
    std::reverse(arguments.begin(), arguments.end());
    try {
        app.parse(std::move(arguments));
    } catch (const CLI::ParseError& error) {
        return invalid_argument(error.what());
    }
    return parser.take(settings);
}

Result<SyncOptions> parse(std::vector<std::string> arguments) {
    Settings settings;
    return parse(std::move(arguments), settings);
}

TEST(SyncOptions, Defaults) {
    const SyncOptions options = parse({}).value();
    EXPECT_EQ(options.versions, 3U);
    EXPECT_EQ(options.verify, VerifyMode::kDigest);
    EXPECT_EQ(options.source, SourceKind::kResident);
    EXPECT_EQ(options.route.chunk_bytes, 4 << 20);
    EXPECT_EQ(options.route.path, RouteOptions::PathChoice::kAuto);
    EXPECT_EQ(options.trainer_ranks(), 4);
    EXPECT_EQ(options.worker_ranks(), 4);
    EXPECT_FALSE(options.role);
    EXPECT_FALSE(options.death);
}

TEST(SyncOptions, LayersInFlightFollowTheStages) {
    EXPECT_FALSE(parse({}).value().fp8_blocks);
    EXPECT_EQ(parse({"--hook", "fp8-blocks"}).value().layers_in_flight, 2);
    EXPECT_EQ(parse({"--hook", "fp8-blocks", "--layers-in-flight", "1"}).value().layers_in_flight, 1);
    EXPECT_TRUE(parse({"--hook", "fp8-blocks"}).value().fp8_blocks);
    EXPECT_EQ(parse({"--hook", "int4"}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(parse({"--hook", "fp8-blocks", "--layers-in-flight", "0"}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(parse({"--layers-in-flight", "3"}).status().message(), HasSubstr("add --hook"));
}

TEST(SyncOptions, NetworkDevicesAreThoseOfARankOrOfAll) {
    const SyncOptions options = parse({"--net-device", "mlx5_0:1,mlx5_1:1", "--net-device", "3=mlx5_3:1"}).value();
    EXPECT_EQ(options.net_devices.of(0), "mlx5_0:1,mlx5_1:1");
    EXPECT_EQ(options.net_devices.of(3), "mlx5_3:1");
    EXPECT_EQ(parse({}).value().net_devices.of(0), "");

    const auto refused = [](const std::vector<std::string>& devices) {
        std::vector<std::string> arguments;
        for (const std::string& device : devices) {
            arguments.insert(arguments.end(), {"--net-device", device});
        }
        const auto parsed = parse(arguments);
        EXPECT_FALSE(parsed.ok());
        return parsed.ok() ? std::string() : parsed.status().message();
    };
    EXPECT_THAT(refused({"8=mlx5_0:1"}), HasSubstr("8 ranks, from 0"));
    EXPECT_THAT(refused({"x=mlx5_0:1"}), HasSubstr("--net-device"));
    EXPECT_THAT(refused({"1="}), HasSubstr("RANK=NAME"));
    EXPECT_THAT(refused({"1=a", "1=b"}), HasSubstr("'a' was given before"));
}

TEST(SyncOptions, EveryFlag) {
    Settings settings;
    const SyncOptions options = parse({"--set",         "num_hidden_layers=2",
                                       "--set",         "mlp_only_layers=[0,1]",
                                       "--worker",      "tp=1",
                                       "--versions",    "5",
                                       "--source",      "gathered",
                                       "--dump",        "out",
                                       "--verify",      "full",
                                       "--json",        "-",
                                       "--credit",      "2",
                                       "--chunk-bytes", "64K",
                                       "--staging",     "1G",
                                       "--slots",       "3",
                                       "--inflight",    "2M",
                                       "--path",        "packed",
                                       "--timeout",     "60",
                                       "--slow-worker", "1:50",
                                       "--slow-worker", "0:5",
                                       "--slow-owner",  "3:10",
                                       "--role",        "worker",
                                       "--weights",     "published",
                                       "--die",         "2@3.4"},
                                      settings)
                                    .value();
    EXPECT_THAT(options.model.sets, ElementsAre("num_hidden_layers=2", "mlp_only_layers=[0,1]"));
    EXPECT_EQ(options.model.form, WeightForm::kPublished);
    ASSERT_EQ(options.workers.size(), 2U);
    EXPECT_EQ(options.worker_ranks(), 5);
    EXPECT_EQ(options.versions, 5U);
    EXPECT_EQ(options.source, SourceKind::kGathered);
    EXPECT_EQ(options.verify, VerifyMode::kFull);
    EXPECT_EQ(options.json_target, "-");
    EXPECT_EQ(options.dump_directory, "out");
    EXPECT_EQ(settings.credit, 2);
    EXPECT_EQ(settings.chunk_bytes, 64 << 10);
    EXPECT_EQ(options.route.chunk_bytes, 64 << 10);
    EXPECT_EQ(settings.staging_bytes, 1 << 30);
    EXPECT_EQ(settings.slots, 3);
    EXPECT_EQ(settings.inflight_bytes, 2 << 20);
    EXPECT_EQ(settings.sync_timeout, std::chrono::seconds(60));
    EXPECT_EQ(options.route.path, RouteOptions::PathChoice::kPacked);
    EXPECT_THAT(options.slow_workers, ElementsAre(Pair(1, 50), Pair(0, 5)));
    EXPECT_THAT(options.slow_owners, ElementsAre(Pair(3, 10)));
    EXPECT_EQ(options.role, Role::kWorker);
    ASSERT_TRUE(options.death);
    EXPECT_EQ(options.death->world_rank, 2);
    EXPECT_EQ(options.death->version, 3U);
    EXPECT_EQ(options.death->group, 4);
}

TEST(SyncOptions, WrongValuesNameTheOption) {
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
             {"--versions", "0"},       {"--versions", "two"},     {"--versions", "99999999999"},
             {"--verify", "maybe"},     {"--source", "elsewhere"}, {"--path", "wireless"},
             {"--role", "observer"},    {"--weights", "lost"},     {"--credit", "0"},
             {"--slots", "-1"},         {"--chunk-bytes", "1"},    {"--chunk-bytes", "many"},
             {"--staging", "4X"},       {"--timeout", "0"},        {"--timeout", "soon"},
             {"--slow-worker", "4:10"}, {"--slow-worker", "1"},    {"--slow-worker", "-1:10"},
             {"--slow-owner", "4:10"},  {"--slow-owner", "0:0"},   {"--slow-owner", "0:101"},
             {"--worker", "tp=0"},      {"--die", "1@2"},          {"--die", "x@1.1"},
             {"--device", "0"}}) {
        const Status status = parse(arguments).status();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << arguments[0] << " " << arguments[1];
        EXPECT_THAT(status.message(), HasSubstr(arguments[0])) << arguments[1];
    }
    EXPECT_FALSE(parse({"--no-such-option"}).ok());
    EXPECT_FALSE(parse({"--staging", "4K"}).ok()) << "staging smaller than a chunk";
    EXPECT_THAT(parse({"--staged"}).status().message(), HasSubstr("--staged: weights are in host memory"));
    EXPECT_TRUE(parse({"--staged", "--memory", "cuda"}).ok());
    EXPECT_EQ(parse({"--memory", "cuda"})->route.chunk_bytes, 256 << 20);
    EXPECT_EQ(parse({"--memory", "cuda", "--staging", "128M"})->route.chunk_bytes, 128 << 20);
    EXPECT_FALSE(parse({"--memory", "cuda", "--staging", "128M", "--chunk-bytes", "256M"}).ok());
}

}  // namespace
}  // namespace sluice::cli

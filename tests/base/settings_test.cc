#include "runtime/base/settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

namespace sluice {
namespace {

using std::chrono::milliseconds;

Result<Settings> with(const std::map<std::string, std::string>& variables) {
    return Settings::from([&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found != variables.end() ? std::optional<std::string>(found->second) : std::nullopt;
    });
}

TEST(SettingsTest, Defaults) {
    const auto settings = with({});
    ASSERT_TRUE(settings.ok());
    EXPECT_EQ(settings->log_level, LogLevel::kInfo);
    EXPECT_EQ(settings->heartbeat_interval, milliseconds(250));
    EXPECT_EQ(settings->heartbeat_dead_after, milliseconds(1500));
    EXPECT_EQ(settings->chunk_bytes, 4194304);
    EXPECT_EQ(settings->staging_bytes, 67108864);
    EXPECT_EQ(settings->slots, 8);
    EXPECT_EQ(settings->inflight_bytes, 33554432);
    EXPECT_EQ(settings->credit, 1);
    EXPECT_EQ(settings->copy_threads, 2);
    EXPECT_EQ(settings->copy_at_once_bytes, 262144);
    EXPECT_TRUE(settings->mapped);
    EXPECT_FALSE(settings->show_ucx_log);
    EXPECT_EQ(settings->ucx, (std::vector<UcxSetting>{{"RNDV_THRESH", "inf"},
                                                      {"MAX_RMA_RAILS", "2"},
                                                      {"MAX_HCA_PER_GPU", "auto"},
                                                      {"CUDA_IPC_ENABLE_GET_ZCOPY", "y"},
                                                      {"CMA_TX_QUOTA", "4"},
                                                      {"RC_TIMEOUT", "500ms"},
                                                      {"RC_RETRY_COUNT", "6"},
                                                      {"UD_TIMEOUT", "10s"},
                                                      {"KEEPALIVE_INTERVAL", "inf"},
                                                      {"IB_REG_MT_THRESH", "inf"},
                                                      {"MEMTYPE_CACHE", "n"}}));
    EXPECT_FALSE(settings->staged);
    EXPECT_TRUE(Settings{}.check().ok());
}

TEST(SettingsTest, EveryVariableIsRead) {
    const auto settings = with({{"SLUICE_LOG_LEVEL", "debug"},
                                {"SLUICE_HEARTBEAT_INTERVAL", "100ms"},
                                {"SLUICE_HEARTBEAT_DEAD_AFTER", "2s"},
                                {"SLUICE_CONNECT_TIMEOUT", "5s"},
                                {"SLUICE_SYNC_TIMEOUT", "1min"},
                                {"SLUICE_CHUNK_BYTES", "64KiB"},
                                {"SLUICE_DIRECT_RUN_BYTES", "8KiB"},
                                {"SLUICE_STAGING_BYTES", "1MiB"},
                                {"SLUICE_SLOTS", "3"},
                                {"SLUICE_INFLIGHT_BYTES", "131072"},
                                {"SLUICE_CREDIT", "2"},
                                {"SLUICE_COPY_THREADS", "3"},
                                {"SLUICE_COPY_AT_ONCE_BYTES", "1KiB"},
                                {"SLUICE_MAPPED", "off"}});
    ASSERT_TRUE(settings.ok()) << settings.status().message();
    EXPECT_EQ(settings->log_level, LogLevel::kDebug);
    EXPECT_EQ(settings->heartbeat_interval, milliseconds(100));
    EXPECT_EQ(settings->heartbeat_dead_after, milliseconds(2000));
    EXPECT_EQ(settings->connect_timeout, milliseconds(5000));
    EXPECT_EQ(settings->sync_timeout, milliseconds(60000));
    EXPECT_EQ(settings->chunk_bytes, 65536);
    EXPECT_EQ(settings->direct_run_bytes, 8192);
    EXPECT_EQ(settings->staging_bytes, 1048576);
    EXPECT_EQ(settings->slots, 3);
    EXPECT_EQ(settings->inflight_bytes, 131072);
    EXPECT_EQ(settings->credit, 2);
    EXPECT_EQ(settings->copy_threads, 3);
    EXPECT_EQ(settings->copy_at_once_bytes, 1024);
    EXPECT_FALSE(settings->mapped);
}

TEST(SettingsTest, ABadValueNamesVariableValueAndRemedy) {
    const auto message = [](const std::string& variable, const std::string& value) {
        const auto settings = with({{variable, value}});
        EXPECT_FALSE(settings.ok()) << variable << "=" << value;
        EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument);
        return settings.status().message();
    };
    EXPECT_EQ(message("SLUICE_LOG_LEVEL", "loud"),
              "SLUICE_LOG_LEVEL: 'loud' is no log level; use debug, info, warning, error or off");
    EXPECT_EQ(message("SLUICE_SLOTS", "eight"), "SLUICE_SLOTS: 'eight' is no number; write for example 8");
    EXPECT_EQ(message("SLUICE_SLOTS", "99999999999"), "SLUICE_SLOTS: '99999999999' is no number; write for example 8");
    EXPECT_EQ(message("SLUICE_SLOTS", "0"), "SLUICE_SLOTS is 0; it must be at least 1");
    EXPECT_EQ(message("SLUICE_CREDIT", "-1"), "SLUICE_CREDIT is -1; it must be at least 1");
    EXPECT_EQ(message("SLUICE_CHUNK_BYTES", "1KiB"), "SLUICE_CHUNK_BYTES is 1KiB; it must be at least 4KiB");
    EXPECT_EQ(message("SLUICE_CHUNK_BYTES", ""),
              "SLUICE_CHUNK_BYTES: '' is no size; write for example 4MiB or 1048576");
    EXPECT_EQ(message("SLUICE_STAGING_BYTES", "1MiB"),
              "SLUICE_STAGING_BYTES is 1MiB; it must be at least 4MiB (SLUICE_CHUNK_BYTES)");
    EXPECT_EQ(message("SLUICE_INFLIGHT_BYTES", "1MiB"),
              "SLUICE_INFLIGHT_BYTES is 1MiB; it must be at least 4MiB (SLUICE_CHUNK_BYTES)");
    EXPECT_EQ(message("SLUICE_HEARTBEAT_DEAD_AFTER", "400ms"),
              "SLUICE_HEARTBEAT_DEAD_AFTER is 400ms; it must be at least 500ms (two of SLUICE_HEARTBEAT_INTERVAL)");
    EXPECT_EQ(message("SLUICE_HEARTBEAT_INTERVAL", "0"), "SLUICE_HEARTBEAT_INTERVAL is 0s; it must be at least 1ms");
    EXPECT_EQ(message("SLUICE_SYNC_TIMEOUT", "soon"),
              "SLUICE_SYNC_TIMEOUT: 'soon' is no time; write for example 250ms or 1.5s");
    EXPECT_EQ(message("SLUICE_CONNECT_TIMEOUT", "30"),
              "SLUICE_CONNECT_TIMEOUT: '30' is no time; write for example 250ms or 1.5s");
}

TEST(SettingsTest, StagingAndWhatIsInFlightHoldAChunk) {
    const auto settings = with({{"SLUICE_CHUNK_BYTES", "128MiB"}});
    ASSERT_TRUE(settings.ok()) << settings.status().message();
    EXPECT_EQ(settings->staging_bytes, 128 << 20);
    EXPECT_EQ(settings->inflight_bytes, 128 << 20);
    const auto given = with({{"SLUICE_CHUNK_BYTES", "128MiB"}, {"SLUICE_STAGING_BYTES", "64MiB"}});
    ASSERT_FALSE(given.ok());
    EXPECT_EQ(given.status().message(),
              "SLUICE_STAGING_BYTES is 64MiB; it must be at least 128MiB (SLUICE_CHUNK_BYTES)");
}

TEST(SettingsTest, SizesForGpus) {
    auto settings = with({});
    ASSERT_TRUE(settings.ok());
    settings->adapt_to_device();
    EXPECT_EQ(settings->chunk_bytes, 256 << 20);
    EXPECT_EQ(settings->staging_bytes, 1 << 30);
    EXPECT_EQ(settings->inflight_bytes, 512 << 20);
    EXPECT_EQ(settings->slots, 16);
    EXPECT_TRUE(settings->check().ok());
}

TEST(SettingsTest, ChunksForGpusFitIntoWhatWasGiven) {
    auto staging = with({{"SLUICE_STAGING_BYTES", "128M"}});
    staging->adapt_to_device();
    EXPECT_EQ(staging->chunk_bytes, 128 << 20);
    EXPECT_TRUE(staging->check().ok());
    auto inflight = with({{"SLUICE_INFLIGHT_BYTES", "64M"}});
    inflight->adapt_to_device();
    EXPECT_EQ(inflight->chunk_bytes, 64 << 20);
    EXPECT_TRUE(inflight->check().ok());
}

TEST(SettingsTest, SizesForGpusLeaveWhatWasGiven) {
    auto settings = with({{"SLUICE_CHUNK_BYTES", "4M"}});
    ASSERT_TRUE(settings.ok());
    settings->adapt_to_device();
    EXPECT_EQ(settings->chunk_bytes, 4 << 20);
    EXPECT_EQ(settings->staging_bytes, 1 << 30);
    EXPECT_EQ(settings->inflight_bytes, 512 << 20);
    EXPECT_TRUE(settings->check().ok());
}

TEST(SettingsTest, TheUsersUcxVariablesWin) {
    const auto settings =
        with({{"UCX_MAX_RMA_RAILS", "4"}, {"UCX_RNDV_THRESH", ""}, {"UCX_LOG_LEVEL", "info"}, {"UCX_TLS", "rc,self"}});
    ASSERT_TRUE(settings.ok());
    EXPECT_EQ(settings->ucx_transports, "rc,self");
    EXPECT_EQ(settings->ucx, (std::vector<UcxSetting>{{"MAX_HCA_PER_GPU", "auto"},
                                                      {"CUDA_IPC_ENABLE_GET_ZCOPY", "y"},
                                                      {"CMA_TX_QUOTA", "4"},
                                                      {"RC_TIMEOUT", "500ms"},
                                                      {"RC_RETRY_COUNT", "6"},
                                                      {"UD_TIMEOUT", "10s"},
                                                      {"KEEPALIVE_INTERVAL", "inf"},
                                                      {"IB_REG_MT_THRESH", "inf"},
                                                      {"MEMTYPE_CACHE", "n"}}));
    EXPECT_TRUE(settings->show_ucx_log);
}

TEST(SettingsTest, AUcxVariableOfOneTransportKeepsOurDefaultForAllAway) {
    const auto settings = with({{"UCX_RC_MLX5_TIMEOUT", "1s"}, {"UCX_UD_VERBS_TIMEOUT", "1m"}});
    ASSERT_TRUE(settings.ok());
    const auto has = [&](const char* key) {
        return std::ranges::any_of(settings->ucx, [&](const UcxSetting& entry) { return entry.key == key; });
    };
    EXPECT_FALSE(has("RC_TIMEOUT"));
    EXPECT_FALSE(has("UD_TIMEOUT"));
    EXPECT_TRUE(has("RC_RETRY_COUNT"));
}

TEST(SettingsTest, DescriptionReadsBackToTheSameSettings) {
    auto changed = with({{"SLUICE_LOG_LEVEL", "off"}, {"SLUICE_SLOTS", "17"}, {"SLUICE_SYNC_TIMEOUT", "1234ms"}});
    ASSERT_TRUE(changed.ok());
    std::map<std::string, std::string> variables;
    for (const auto& [variable, value] : changed->describe()) {
        EXPECT_TRUE(variables.emplace(variable, value).second) << variable;
    }
    EXPECT_EQ(variables.size(), 15u);
    EXPECT_EQ(variables["SLUICE_SLOTS"], "17");
    EXPECT_EQ(variables["SLUICE_CHUNK_BYTES"], "4MiB");
    const auto again = with(variables);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->sync_timeout, milliseconds(1234));
    EXPECT_EQ(again->log_level, LogLevel::kOff);
}

TEST(SettingsTest, TheEnvironmentIsASource) {
    ASSERT_EQ(::setenv("SLUICE_SLOTS", "5", 1), 0);
    const auto settings = Settings::from_environment();
    ASSERT_EQ(::unsetenv("SLUICE_SLOTS"), 0);
    ASSERT_TRUE(settings.ok()) << settings.status().message();
    EXPECT_EQ(settings->slots, 5);
}

}  // namespace
}  // namespace sluice

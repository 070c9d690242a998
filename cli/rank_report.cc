#include "cli/rank_report.h"

#include "planner/plan_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>

namespace sluice::cli {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(VersionReport, version, seconds, bytes, gather_s, pack_s, pull_s, scatter_s, hooks_s,
                                   commit_s, reading_share, registrations, allocations, plan_wire_bytes,
                                   copied_on_trainer, messages, transport_cpu_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkReport, trainer, transport, one_sided, bytes, mapped_bytes, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankReport, trainer, rank, versions, links, gather_tp, gather_etp, gather_fsdp,
                                   gather_ep, gather_pp, groups, chunks, peak_groups, peak_trainer_bytes,
                                   peak_staging_bytes, layer_buffer_bytes, mismatches)

std::string RankReport::encode() const { return nlohmann::json(*this).dump(); }

Result<RankReport> RankReport::decode(const std::string& text) {
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) {
        return internal_error("a rank's report is malformed");
    }
    try {
        return json.get<RankReport>();
    } catch (const nlohmann::json::exception& error) {
        return internal_error(fmt::format("a rank's report is malformed: {}", error.what()));
    }
}

namespace {

/// One version over all ranks: times are those of the slowest rank, amounts are summed, shares are the least of all workers. `verified_inside`:
/// workers have compared every element between their last slice and the commit.
VersionReport combine(const std::vector<RankReport>& reports, std::size_t index, bool verified_inside) {
    VersionReport all;
    std::optional<double> reading_share;
    std::optional<double> commit_s;
    double landed_s = 0;
    for (const RankReport& report : reports) {
        if (index >= report.versions.size()) {
            continue;
        }
        const VersionReport& one = report.versions[index];
        all.version = one.version;
        // A trainer's own time includes its wait for workers that verify; that of a worker does not.
        all.seconds = report.trainer ? all.seconds : std::max(all.seconds, one.seconds);
        if (!report.trainer) {
            reading_share = std::min(reading_share.value_or(one.reading_share), one.reading_share);
            landed_s = std::max(landed_s, one.seconds - one.commit_s);
            commit_s = std::min(commit_s.value_or(one.commit_s), one.commit_s);
        }
        for (const auto field : {&VersionReport::gather_s, &VersionReport::pack_s, &VersionReport::pull_s,
                                 &VersionReport::scatter_s, &VersionReport::hooks_s, &VersionReport::commit_s}) {
            all.*field = std::max(all.*field, one.*field);
        }
        for (const auto field :
             {&VersionReport::bytes, &VersionReport::registrations, &VersionReport::allocations,
              &VersionReport::plan_wire_bytes, &VersionReport::copied_on_trainer, &VersionReport::messages}) {
            all.*field += one.*field;
        }
    }
    all.reading_share = reading_share.value_or(0);
    if (verified_inside && commit_s) {
        // A worker's time is without its own comparison, but its commit waits for those of the others; the last one's waits for none.
        all.commit_s = *commit_s;
        all.seconds = landed_s + *commit_s;
    }
    return all;
}

std::size_t version_count(const std::vector<RankReport>& reports) {
    std::size_t count = 0;
    for (const RankReport& report : reports) {
        count = std::max(count, report.versions.size());
    }
    return count;
}

const char* status_word(const Status& status) {
    return status.ok() ? "ok" : status.code() == StatusCode::kMismatch ? "mismatch" : "failed";
}

}  // namespace

nlohmann::json sync_json(const std::vector<RankReport>& reports, const RunOutcome& outcome) {
    nlohmann::json out;
    out["schema"] = 1;
    out["status"] = status_word(outcome.status);
    out["error"] = nullptr;
    if (!outcome.status.ok()) {
        const auto named = [](const std::string& name) {
            return name.empty() ? nlohmann::json() : nlohmann::json(name);
        };
        out["error"] = {
            {"rank", named(outcome.failed_rank)}, {"peer", named(outcome.peer)}, {"message", outcome.status.message()}};
    }
    out["versions"] = nlohmann::json::array();
    for (const char* key : {"registrations", "allocations", "plan_wire_bytes", "copied_on_trainer_bytes", "messages"}) {
        out[key] = nlohmann::json::array();
    }
    for (std::size_t i = 0; i < version_count(reports); ++i) {
        const VersionReport v = combine(reports, i, outcome.verify_mode == "full");
        out["versions"].push_back({{"version", v.version},
                                   {"seconds", v.seconds},
                                   {"bytes", v.bytes},
                                   {"phases",
                                    {{"gather", v.gather_s},
                                     {"pack", v.pack_s},
                                     {"pull", v.pull_s},
                                     {"scatter", v.scatter_s},
                                     {"hooks", v.hooks_s},
                                     {"commit", v.commit_s}}},
                                   {"reading_share", v.reading_share},
                                   {"wire_share", nullptr}});
        out["registrations"].push_back(v.registrations);
        out["allocations"].push_back(v.allocations);
        out["plan_wire_bytes"].push_back(v.plan_wire_bytes);
        out["copied_on_trainer_bytes"].push_back(v.copied_on_trainer);
        out["messages"].push_back(v.messages);
    }
    out["links"] = nlohmann::json::array();
    out["ranks"] = nlohmann::json::array();
    RankReport totals;
    for (const RankReport& report : reports) {
        nlohmann::json cpu = nlohmann::json::array();
        nlohmann::json pull = nlohmann::json::array();
        for (const VersionReport& version : report.versions) {
            cpu.push_back(version.transport_cpu_s);
            pull.push_back(version.pull_s);
        }
        out["ranks"].push_back({{"side", report.trainer ? "trainer" : "worker"},
                                {"rank", report.rank},
                                {"groups", report.groups},
                                {"chunks", report.chunks},
                                {"pull_s", std::move(pull)},
                                {"transport_cpu_s", std::move(cpu)}});
        for (const LinkReport& link : report.links) {
            out["links"].push_back({{"worker", report.rank},
                                    {"trainer", link.trainer},
                                    {"transport", link.transport},
                                    {"one_sided", link.one_sided},
                                    {"bytes", link.bytes},
                                    {"mapped_bytes", link.mapped_bytes},
                                    {"seconds", link.seconds}});
        }
        for (const auto field : {&RankReport::gather_tp, &RankReport::gather_etp, &RankReport::gather_fsdp,
                                 &RankReport::gather_ep, &RankReport::gather_pp, &RankReport::mismatches}) {
            totals.*field += report.*field;
        }
        for (const auto field : {&RankReport::peak_groups, &RankReport::peak_trainer_bytes,
                                 &RankReport::peak_staging_bytes, &RankReport::layer_buffer_bytes}) {
            totals.*field = std::max(totals.*field, report.*field);
        }
    }
    out["gather_bytes"] = {{"tp", totals.gather_tp},
                           {"etp", totals.gather_etp},
                           {"fsdp", totals.gather_fsdp},
                           {"ep", totals.gather_ep},
                           {"pp", totals.gather_pp}};
    out["peak"] = {{"trainer_groups", totals.peak_groups},
                   {"trainer_bytes", totals.peak_trainer_bytes},
                   {"worker_staging_bytes", totals.peak_staging_bytes},
                   {"worker_layer_bytes", totals.layer_buffer_bytes}};
    out["verify"] = {{"mode", outcome.verify_mode}, {"mismatches", totals.mismatches}};
    return out;
}

// One line when reads of some link needed the owner's processor, which nobody should have to find out from the times.
static std::string emulated_links(const std::vector<RankReport>& reports) {
    std::map<std::string, int> emulated;
    int links = 0;
    for (const RankReport& report : reports) {
        for (const LinkReport& link : report.links) {
            ++links;
            if (!link.one_sided && link.bytes > link.mapped_bytes) {
                ++emulated[link.transport];
            }
        }
    }
    std::string text;
    for (const auto& [transport, count] : emulated) {
        text += fmt::format(
            "{} of {} links are emulated ({}): reads need the owner's processor; `sluice doctor` says why\n", count,
            links, transport);
    }
    return text;
}

std::string sync_table(const std::vector<RankReport>& reports, const RunOutcome& outcome) {
    std::string text;
    const auto trainers =
        std::count_if(reports.begin(), reports.end(), [](const RankReport& report) { return report.trainer; });
    text += fmt::format("{} trainers -> {} workers, verify {}\n", trainers,
                        static_cast<std::ptrdiff_t>(reports.size()) - trainers, outcome.verify_mode);
    text += fmt::format("{:>7}  {:>9}  {:>8}  {:>11}  {:>8}  {:>8}  {:>8}  {:>8}  {:>8}  {:>8}\n", "version", "bytes",
                        "seconds", "rate", "gather", "pack", "pull", "scatter", "hooks", "commit");
    for (std::size_t i = 0; i < version_count(reports); ++i) {
        const VersionReport v = combine(reports, i, outcome.verify_mode == "full");
        const double rate = v.seconds > 0 ? static_cast<double>(v.bytes) / v.seconds : 0;
        text +=
            fmt::format("{:>7}  {:>9}  {:>8.3f}  {:>9}/s  {:>8.3f}  {:>8.3f}  {:>8.3f}  {:>8.3f}  {:>8.3f}  {:>8.3f}\n",
                        v.version, human_bytes(v.bytes), v.seconds, human_bytes(static_cast<std::int64_t>(rate)),
                        v.gather_s, v.pack_s, v.pull_s, v.scatter_s, v.hooks_s, v.commit_s);
    }
    return text + emulated_links(reports);
}

}  // namespace sluice::cli

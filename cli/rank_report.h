#pragma once

#include "runtime/base/status.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::cli {

/// What one rank has to say of one version.
struct VersionReport {
    std::uint64_t version = 0;
    double seconds = 0;
    std::int64_t bytes = 0;  ///< Pulled by a worker.
    double gather_s = 0, pack_s = 0, pull_s = 0, scatter_s = 0, hooks_s = 0, commit_s = 0;
    double reading_share = 0;            ///< A worker's: of `seconds`, with reads in flight on any link.
    std::int64_t registrations = 0;      ///< The first version's include set-up.
    std::int64_t allocations = 0;        ///< Growth of pools and arenas.
    std::int64_t plan_wire_bytes = 0;    ///< The first version's is the set-up's.
    std::int64_t copied_on_trainer = 0;  ///< Packed by a trainer.
    std::int64_t messages = 0;           ///< Control messages sent.
    double transport_cpu_s = 0;          ///< CPU time of the transport thread, from the start of the sync to its end.
};

struct LinkReport {
    int trainer = 0;
    std::string transport;
    bool one_sided = false;
    std::int64_t mapped_bytes = 0;  ///< Of `bytes`: copied from mapped memory.
    std::int64_t bytes = 0;
    double seconds = 0;
};

/// What one rank has to say of the whole run. Travels to the rank that writes the results.
struct RankReport {
    bool trainer = false;
    int rank = 0;  ///< Within its side.
    std::vector<VersionReport> versions;
    std::vector<LinkReport> links;  ///< A worker's, of the last version.
    std::int64_t gather_tp = 0, gather_etp = 0, gather_fsdp = 0, gather_ep = 0, gather_pp = 0;  ///< Bytes per version.
    std::int64_t groups = 0;
    /// Of a version: pulled by a worker, served by a trainer (once per consumer) or gathered.
    std::int64_t chunks = 0;
    std::int64_t peak_groups = 0;
    std::int64_t peak_trainer_bytes = 0;
    std::int64_t peak_staging_bytes = 0;
    std::int64_t layer_buffer_bytes = 0;
    std::int64_t mismatches = 0;

    [[nodiscard]] std::string encode() const;
    static Result<RankReport> decode(const std::string& text);
};

/// How the run ended, as all ranks agreed.
struct RunOutcome {
    Status status;
    /// Names ("trainer 1") of the rank that failed and of the peer that the failure is about; empty when there is none.
    std::string failed_rank;
    std::string peer;
    std::string verify_mode;
};

/// The object that `sluice sync --json` writes (schema 1).
nlohmann::json sync_json(const std::vector<RankReport>& reports, const RunOutcome& outcome);

/// One line per version, for people; ends in a newline.
std::string sync_table(const std::vector<RankReport>& reports, const RunOutcome& outcome);

}  // namespace sluice::cli

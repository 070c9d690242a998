#include "cli/sync_command.h"

#include "cli/chrome_trace.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/nccl_ranks.h"
#include "cli/option_agreement.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_probe.h"
#include "runtime/exchange/agreement.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "runtime/exchange/trace_codec.h"
#include "runtime/services/log.h"
#include "transport/ucx/ucx_transport.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace sluice::cli {
namespace {

// Some 3 MB of each rank: a few versions of a large model. Later events are left out, and counted.
constexpr std::size_t kMostTraceEvents = 1 << 16;
constexpr auto kDumpLimit = std::chrono::minutes(10);

/// Which side a rank is on, and its number there.
struct Seat {
    bool trainer = false;
    int own_rank = 0;
};

// With --role the two programs of one mpirun may come in either order; without it trainers come first.
Result<Seat> take_seat(Bootstrap& bootstrap, const SyncOptions& options, Deadline deadline) {
    const int trainers = options.trainer_ranks();
    const int workers = options.worker_ranks();
    const std::byte role = !options.role ? std::byte{0} : *options.role == Role::kTrainer ? std::byte{1} : std::byte{2};
    SLUICE_ASSIGN_OR_RETURN(const auto roles, bootstrap.all_gather({&role, 1}, deadline));
    if (bootstrap.size() != trainers + workers) {
        return invalid_argument(
            fmt::format("the layouts need {} ranks ({} trainers and {} workers), but {} were started; use mpirun -n {}",
                        trainers + workers, trainers, workers, bootstrap.size(), trainers + workers));
    }
    const auto count = [&](std::byte value, int before) {
        int n = 0;
        for (int rank = 0; rank < before; ++rank) {
            n += roles[static_cast<std::size_t>(rank)].size() == 1 &&
                         roles[static_cast<std::size_t>(rank)].front() == value
                     ? 1
                     : 0;
        }
        return n;
    };
    const int rank = bootstrap.rank();
    const int all = bootstrap.size();
    if (count(std::byte{0}, all) == all) {
        return rank < trainers ? Seat{true, rank} : Seat{false, rank - trainers};
    }
    if (count(std::byte{1}, all) != trainers || count(std::byte{2}, all) != workers) {
        return invalid_argument(fmt::format(
            "the layouts need {} ranks with --role trainer and {} with --role worker; {} and {} were started", trainers,
            workers, count(std::byte{1}, all), count(std::byte{2}, all)));
    }
    return role == std::byte{1} ? Seat{true, count(std::byte{1}, rank)} : Seat{false, count(std::byte{2}, rank)};
}

/// The GPU of a rank whose weights lie on one.
struct DeviceMemory {
    std::unique_ptr<Device> device;
    int ordinal = 0;
    std::optional<Buffer> probe;  ///< What links are tried out with; none where everything goes through host memory.
};

Result<DeviceMemory> open_device(const SyncOptions& options, const Settings& settings, const Seat& seat, int rank) {
    DeviceMemory out;
    if ((seat.trainer ? options.memory.trainer : options.memory.worker) != MemoryKind::kCuda) {
        return out;
    }
    const auto devices = static_cast<int>(probe_cuda().devices.size());
    out.ordinal = options.memory.device.value_or(devices > 0 ? rank % devices : 0);
    // The thread that gathers by NCCL launches kernels too.
    const int lanes = settings.copy_threads + (seat.trainer && options.gather_by_nccl ? 1 : 0);
    SLUICE_ASSIGN_OR_RETURN(out.device, open_cuda_device(out.ordinal, lanes));
    log::info("weights on CUDA device {}", out.device->name());
    if (!options.memory.mixed() && !settings.staged) {
        SLUICE_ASSIGN_OR_RETURN(out.probe, out.device->allocate(4096));
    }
    return out;
}

/// What a rank sends to the one that writes the results: its report, and its trace if it has one.
struct RankNote {
    RankReport report;
    std::optional<TraceLog> trace;

    // One note, so that ranks with and without --trace do the same. The report is text and ends at the first zero byte.
    [[nodiscard]] std::string encode() const {
        std::string note = report.encode();
        if (trace) {
            note += '\0';
            note += encode_trace(*trace);
        }
        return note;
    }
    static Result<RankNote> decode(std::string_view note) {
        const std::size_t end = std::min(note.find('\0'), note.size());
        RankNote out;
        SLUICE_ASSIGN_OR_RETURN(out.report, RankReport::decode(std::string(note.substr(0, end))));
        if (end < note.size()) {
            SLUICE_ASSIGN_OR_RETURN(out.trace, decode_trace(note.substr(end + 1)));
        }
        return out;
    }
};

Status write_trace(const std::string& path, const std::vector<RankTrace>& traces, const Session& session) {
    for (const RankTrace& rank : traces) {
        if (rank.log.left_out > 0) {
            log::warning("--trace {}: {} later events of {} were left out; trace fewer versions or a smaller model",
                         path, rank.log.left_out, session.name_of(rank.world_rank));
        }
    }
    return write_file(path, chrome_trace(traces, [&](int rank) { return session.name_of(rank); }));
}

/// Writes what came of the run: on the coordinator, from the reports of all ranks alive.
ExitCode write_results(const SyncOptions& options, Session& session, const Status& outcome, const RankReport& mine) {
    RankNote my_note{mine, {}};
    if (const TraceRecorder* recorder = session.trace()) {
        my_note.trace = recorder->log();
    }
    const SessionNotes notes =
        session.gather_notes(my_note.encode(), Deadline::after(std::chrono::seconds(outcome.ok() ? 30 : 1)));
    if (!session.is_coordinator()) {
        return exit_code(outcome.code());
    }
    std::vector<RankReport> reports;
    std::vector<RankTrace> traces;
    std::string missing;
    for (std::size_t rank = 0; rank < notes.by_rank.size(); ++rank) {
        Result<RankNote> note = RankNote::decode(notes.by_rank[rank]);
        if (notes.by_rank[rank].empty() || !note.ok()) {
            missing += fmt::format("{}{}", missing.empty() ? "" : ", ", session.name_of(static_cast<int>(rank)));
            continue;
        }
        reports.push_back(std::move(note->report));
        if (note->trace) {
            traces.push_back({static_cast<int>(rank), std::move(*note->trace)});
        }
    }
    // After a failure those that are lost have none.
    const Status complete =
        !outcome.ok() || missing.empty()
            ? ok_status()
            : Status(StatusCode::kInternal,
                     fmt::format("no report came from {}: {}", missing,
                                 notes.status.ok() ? "it was not to be read" : notes.status.message()));
    RunOutcome run;
    run.status = outcome;
    if (const int failed = session.last_failed_rank(); failed >= 0) {
        run.failed_rank = session.name_of(failed);
    }
    if (const auto peer = outcome.peer(); peer && *peer >= 0) {
        run.peer = session.name_of(*peer);
    }
    run.verify_mode = verify_name(options.verify);
    const Output output(options.json_target);
    fmt::print(output.people(), "{}", sync_table(reports, run));
    std::fflush(output.people());
    ExitCode code = std::max(report(outcome), report(output.write_json(sync_json(reports, run))));
    if (!options.trace_target.empty()) {
        code = std::max(code, report(write_trace(options.trace_target, traces, session)));
    }
    return std::max(code, report(complete));
}

// Of an outcome that all ranks know: one line is enough.
ExitCode report_once(const Bootstrap& bootstrap, const Status& outcome) {
    return bootstrap.rank() == 0 ? report(outcome) : exit_code(outcome.code());
}

// Rank 0 writes them after the last version, unless it dies.
Status check_targets(const SyncOptions& options) {
    for (const auto& [name, target] : {std::pair("--json", options.json_target), {"--trace", options.trace_target}}) {
        if (target.empty() || target == "-") {
            continue;
        }
        if (const Status status = check_writable(target); !status.ok()) {
            return status.with_context(name);
        }
    }
    return ok_status();
}

ExitCode run_sync(const SyncOptionsParser& parser) {
    Result<Settings> settings = Settings::from_environment();
    Result<SyncOptions> parsed = settings.ok() ? parser.take(*settings) : Result<SyncOptions>(settings.status());
    Result<std::unique_ptr<MpiBootstrap>> mpi = MpiBootstrap::create();
    if (!mpi.ok()) {
        return report(mpi.status());
    }
    Bootstrap& bootstrap = **mpi;
    const Deadline deadline = Deadline::after((settings.ok() ? *settings : Settings{}).connect_timeout);

    // Every rank must learn of a failure of any.
    const auto end_together = [&](const Status& status) -> std::optional<ExitCode> {
        const Status agreed = agree_on_status(bootstrap, status, deadline);
        if (agreed.ok()) {
            return std::nullopt;
        }
        return report_once(bootstrap, agreed);
    };
    if (const auto ended = end_together(parsed.status())) {
        return *ended;
    }
    SyncOptions& options = *parsed;
    log::set_level(settings->log_level);
    const Status alike = agree_on_options(bootstrap, options, deadline);
    if (const auto ended = end_together(alike.ok() && bootstrap.rank() == 0 ? check_targets(options) : alike)) {
        return *ended;
    }
    const Result<Seat> seat = take_seat(bootstrap, options, deadline);
    if (const auto ended = end_together(seat.status())) {
        return *ended;
    }
    log::set_tag(fmt::format("{} {}", seat->trainer ? "trainer" : "worker", seat->own_rank));
    const Result<Model> model = open_model(options.model);
    if (const auto ended = end_together(model.status())) {
        return *ended;
    }
    if (bootstrap.rank() == 0) {
        if (const std::optional<std::string> warning = tied_head_warning(*model)) {
            log::warning("{}", *warning);
        }
    }
    // Outlives the session, whose memory and programs are its own.
    Result<DeviceMemory> device = open_device(options, *settings, *seat, bootstrap.rank());
    if (const auto ended = end_together(device.status())) {
        return *ended;
    }
    std::unique_ptr<CollectiveGroup> gather_group;
    if (options.gather_by_nccl) {
        auto opened = open_nccl_ranks(bootstrap, seat->trainer ? std::optional(seat->own_rank) : std::nullopt,
                                      options.trainer_ranks(), device->ordinal, deadline);
        if (!opened.ok()) {
            return report_once(bootstrap, opened.status().with_context("--gather nccl"));
        }
        gather_group = std::move(*opened);
    }
    auto session = Session::open(
        *settings,
        [&](EventLoop& loop) {
            transport::UcxOptions ucx;
            ucx.settings = settings->ucx;
            ucx.show_log = settings->show_ucx_log;
            ucx.net_devices = options.net_devices.of(bootstrap.rank());
            if (device->probe) {
                ucx.probe_memory = device->probe->bytes();
                ucx.probe_kind = device->probe->kind();
            }
            return transport::open_ucx_transport(loop, ucx);
        },
        device->device.get());
    if (const auto ended = end_together(session.status())) {
        return *ended;
    }
    if (!options.trace_target.empty()) {
        (*session)->record_trace(kMostTraceEvents);
    }
    ExitCode code = kDone;
    const SyncContext context{options,
                              *settings,
                              *model,
                              bootstrap,
                              **session,
                              seat->own_rank,
                              device->device.get(),
                              gather_group.get(),
                              [&] { (*mpi)->finalize(); }};
    const Finish finish = [&](const Status& outcome, const RankReport& mine) {
        if ((*session)->connected()) {
            code = write_results(options, **session, outcome, mine);
        } else {
            code = report_once(bootstrap, outcome);
        }
    };
    seat->trainer ? run_trainer(context, finish) : run_worker(context, finish);
    return code;
}

}  // namespace

Status start_together(const SyncContext& context, std::uint64_t version, const Status& mine) {
    return context.session.coordination()
        .agree(fmt::format("start of version {}", version), mine, Deadline::after(context.settings.sync_timeout))
        .status;
}

Status agree_on_dump(const SyncContext& context, const Status& mine) {
    const std::chrono::milliseconds limit =
        std::max<std::chrono::milliseconds>(kDumpLimit, context.settings.sync_timeout);
    return context.session.coordination().agree("dump", mine, Deadline::after(limit)).status;
}

double transport_cpu_seconds(Session& session) {
    timespec used{};
    session.loop().run_and_wait([&] { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used); });
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

ExitCode refuse_sync(const Status& wrong) {
    const Result<std::unique_ptr<MpiBootstrap>> mpi = MpiBootstrap::create();
    if (!mpi.ok()) {
        return report(wrong);
    }
    return report_once(**mpi, agree_on_status(**mpi, wrong, Deadline::after(Settings{}.connect_timeout)));
}

void add_sync_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand(
        "sync", "Move the weights from trainer ranks to inference workers, under mpirun -n (trainers + workers)");
    auto parser = std::make_shared<SyncOptionsParser>();
    parser->add_to(*command);
    command->callback([&run, parser] { run = [parser] { return run_sync(*parser); }; });
}

}  // namespace sluice::cli

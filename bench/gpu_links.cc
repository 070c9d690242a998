#include "bench/gpu_links.h"

#include "bench/raw_get.h"
#include "bench/spread.h"
#include "planner/plan_summary.h"
#include "runtime/base/units.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_probe.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "runtime/services/log.h"
#include "runtime/services/tensor_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>

namespace sluice::bench {
namespace {

using Clock = EventLoop::Clock;

// What an owner has in a reader's part is a multiple of it, and so are the pieces of one kernel that reads from several owners at once.
constexpr std::int64_t kChunk = std::int64_t{256} << 20;
constexpr std::int64_t kTurn = std::int64_t{2} << 20;

struct Way {
    enum class Kind : std::uint8_t { kOneKernel, kKernels, kCopies, kGets };
    const char* name = "";
    Kind kind = Kind::kOneKernel;
    std::int64_t piece = 0;  // 0: all in one
    int lanes = 1;           // at a time; gets: one from each owner
    bool everywhere = true;  // else of the first pair only: why the others are what they are
    // All over again in so much memory, as packed chunks pass through slots; 0: each byte once.
    std::int64_t within = 0;
};
using Kind = Way::Kind;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kSlots = std::int64_t{4} << 30;

constexpr Way kWays[] = {
    {"one kernel", Kind::kOneKernel, 0, 1, true},
    {"kernels of 256 MiB", Kind::kKernels, kChunk, 16, true},
    {"copies of 256 MiB", Kind::kCopies, kChunk, 4, true},
    {"gets of 256 MiB", Kind::kGets, kChunk, 1, true},
    {"gets of 256 MiB in 4 GiB", Kind::kGets, kChunk, 1, true, kSlots},
    {"gets of 64 MiB", Kind::kGets, 64 * kMiB, 1, true},
    {"gets of 4 MiB", Kind::kGets, 4 * kMiB, 1, true},
    {"kernels of 4 MiB", Kind::kKernels, 4 * kMiB, 16, false},
    {"one copy", Kind::kCopies, 0, 1, false},
    {"copies of 256 MiB, one at a time", Kind::kCopies, kChunk, 1, false},
    {"copies of 4 MiB, one at a time", Kind::kCopies, 4 * kMiB, 1, false},
    {"copies of 4 MiB", Kind::kCopies, 4 * kMiB, 16, false},
    {"one copy, in 4 GiB", Kind::kCopies, 0, 1, false, kSlots},
    {"copies of 256 MiB in 4 GiB", Kind::kCopies, kChunk, 4, false, kSlots},
    {"gets of 1 MiB", Kind::kGets, kMiB, 1, false},
};

/// Each reader reads from all owners.
struct Pattern {
    std::string name;
    std::vector<int> readers;
    std::function<std::vector<int>(int reader)> owners_of;
    bool probed = false;  // with all ways
};

Result<Pattern> parse_pattern(const std::string& text, int ranks) {
    std::vector<int> everybody(static_cast<std::size_t>(ranks));
    std::iota(everybody.begin(), everybody.end(), 0);
    if (text == "all") {
        return Pattern{text, everybody, [everybody](int reader) {
                           std::vector<int> others = everybody;
                           std::erase(others, reader);
                           return others;
                       }};
    }
    const std::size_t colon = text.find(':');
    const auto number = [](const std::string& digits) {
        return digits.empty() || digits.size() > 4 || digits.find_first_not_of("0123456789") != std::string::npos
                   ? 0
                   : std::stoi(digits);
    };
    const int owners = number(text.substr(0, colon));
    const int readers = colon == std::string::npos ? 0 : number(text.substr(colon + 1));
    if (owners < 1 || readers < 1 || owners + readers > ranks) {
        return invalid_argument(
            fmt::format("--at-once {}: use T:W with T + W of the {} ranks that were started, or all", text, ranks));
    }
    return Pattern{text,
                   {everybody.begin() + owners, everybody.begin() + owners + readers},
                   [owned = std::vector<int>(everybody.begin(), everybody.begin() + owners)](int) { return owned; }};
}

std::vector<Pattern> pairs(int ranks) {
    std::vector<Pattern> out;
    for (int owner = 0; owner < ranks; ++owner) {
        for (int reader = 0; reader < ranks; ++reader) {
            if (owner != reader) {
                out.push_back({fmt::format("{} -> {}", owner, reader), {reader}, [owner](int) {
                                   return std::vector<int>{owner};
                               }});
            }
        }
    }
    out.front().probed = true;
    return out;
}

/// A range that is read from one owner, at the same place in its memory and in the reader's.
struct Range {
    int owner = 0;
    std::int64_t begin = 0;
    std::int64_t bytes = 0;
};

/// A rank's part in all patterns.
class Links {
public:
    Links(const GpuLinksOptions& options, const Settings& settings, Bootstrap& bootstrap, Device& device)
        : options_(options), settings_(settings), bootstrap_(bootstrap), device_(device), rank_(bootstrap.rank()) {}

    Status open() {
        SLUICE_ASSIGN_OR_RETURN(source_, device_.allocate(options_.bytes));
        SLUICE_ASSIGN_OR_RETURN(target_, device_.allocate(options_.bytes));
        SLUICE_ASSIGN_OR_RETURN(const auto values, values_program({{rank_, 0, options_.bytes}}, source_->data()));
        SLUICE_RETURN_IF_ERROR(device_.fill_values(*values, 1, 0));
        SLUICE_ASSIGN_OR_RETURN(const auto handle, device_.share(source_->data()));
        SLUICE_ASSIGN_OR_RETURN(const auto handles, bootstrap_.all_gather(handle, deadline()));
        for (int owner = 0; owner < bootstrap_.size(); ++owner) {
            std::optional<Buffer> mapped;
            if (owner != rank_) {
                SLUICE_ASSIGN_OR_RETURN(mapped, device_.map(handles[static_cast<std::size_t>(owner)], options_.bytes));
            }
            mapped_.push_back(std::move(mapped));
            Buffer& memory = owner == rank_ ? *source_ : *target_;
            SLUICE_ASSIGN_OR_RETURN(auto raw,
                                    RawGet::create(settings_, bootstrap_, memory.bytes(), deadline(), &device_, owner));
            gets_.push_back(std::move(raw));
        }
        return ok_status();
    }

    // Who reads closes first.
    Status close() {
        for (int owner = 0; owner < bootstrap_.size(); ++owner) {
            if (owner != rank_) {
                gets_[static_cast<std::size_t>(owner)].reset();
            }
        }
        mapped_.clear();
        SLUICE_RETURN_IF_ERROR(bootstrap_.barrier(deadline()));
        gets_.clear();
        return bootstrap_.barrier(deadline());
    }

    Status measure(const Pattern& pattern, const Way& way, nlohmann::json& rows) {
        const bool reads = std::find(pattern.readers.begin(), pattern.readers.end(), rank_) != pattern.readers.end();
        const std::size_t owners = pattern.owners_of(pattern.readers.front()).size();
        const std::int64_t part = part_of(owners, way);
        const std::int64_t rounds = part_of(owners, {}) / part;
        const std::int64_t bytes = rounds * part * static_cast<std::int64_t>(owners);
        const std::vector<Range> ranges = reads ? ranges_of(pattern.owners_of(rank_), part) : std::vector<Range>();
        std::vector<Work> work;
        if (reads) {
            SLUICE_ASSIGN_OR_RETURN(work, prepare(way, ranges, rounds));
        }
        std::vector<double> rates;
        for (int repetition = 0; repetition <= options_.repetitions; ++repetition) {
            if (reads && repetition == 0) {
                SLUICE_RETURN_IF_ERROR(device_.fill(target_->data(), std::byte{0xAB}, target_->size(), 0));
            }
            SLUICE_ASSIGN_OR_RETURN(const double mine, run(work, reads ? lanes_of(way, ranges) : 0));
            SLUICE_ASSIGN_OR_RETURN(const double slowest, slowest_of(mine));
            if (repetition > 0) {  // the first warms up, and is checked
                rates.push_back(static_cast<double>(bytes) / slowest);
            } else if (reads) {
                SLUICE_RETURN_IF_ERROR(verify(ranges).with_context(fmt::format("{}, {}", pattern.name, way.name)));
            }
        }
        // All owners of a pattern are read by all its readers, so that each gives as much.
        const double out_of_in =
            pattern.name == "all" ? 1 : static_cast<double>(pattern.readers.size()) / static_cast<double>(owners);
        rows.push_back({{"pattern", pattern.name},
                        {"way", way.name},
                        {"name", pattern.name + ", " + way.name},
                        {"bytes_of_one_reader", bytes},
                        {"ingress_bytes_per_second", spread(rates)},
                        {"egress_over_ingress", out_of_in}});
        return ok_status();
    }

private:
    using Work = std::function<Status(int lane)>;

    [[nodiscard]] Deadline deadline() const { return Deadline::after(settings_.sync_timeout); }

    // Each owner's part of the reader's bytes, or of the memory that it stays within: a whole number of chunks.
    [[nodiscard]] std::int64_t part_of(std::size_t owners, const Way& way) const {
        const std::int64_t all = way.within > 0 ? std::min(way.within, options_.bytes) : options_.bytes;
        return std::max(all / static_cast<std::int64_t>(owners) / kChunk * kChunk, kChunk);
    }
    [[nodiscard]] static std::vector<Range> ranges_of(const std::vector<int>& owners, std::int64_t part) {
        std::vector<Range> out;
        for (const int owner : owners) {
            out.push_back({owner, static_cast<std::int64_t>(out.size()) * part, part});
        }
        return out;
    }
    [[nodiscard]] static int lanes_of(const Way& way, const std::vector<Range>& ranges) {
        return way.kind == Kind::kGets ? static_cast<int>(ranges.size()) : way.lanes;
    }

    // All ranges in pieces, the owners taking turns.
    [[nodiscard]] static std::vector<Range> pieces(const std::vector<Range>& ranges, std::int64_t piece) {
        std::vector<Range> out;
        for (std::int64_t at = 0; at < ranges.front().bytes; at += piece) {
            for (const Range& range : ranges) {
                out.push_back({range.owner, range.begin + at, std::min(piece, range.bytes - at)});
            }
        }
        return out;
    }

    [[nodiscard]] const std::byte* at(const Range& range) const {
        return mapped_[static_cast<std::size_t>(range.owner)]->data() + range.begin;
    }

    Result<Work> kernel(const std::vector<Range>& ranges) {
        std::vector<DeviceCopy> copies;
        for (const Range& range : ranges) {
            DeviceCopy& copy = copies.emplace_back();
            copy.copy.item = range.bytes;
            copy.source = at(range);
            copy.target = target_->data() + range.begin;
        }
        SLUICE_ASSIGN_OR_RETURN(auto program, device_.compile(copies));
        return Work([this, kept = std::shared_ptr<DeviceProgram>(std::move(program))](int lane) {
            return device_.run(*kept, {}, lane, nullptr);
        });
    }

    // What the lanes take one by one; of gets each lane has its owner.
    Result<std::vector<Work>> prepare(const Way& way, const std::vector<Range>& ranges, std::int64_t rounds) {
        std::vector<Work> out;
        switch (way.kind) {
            case Kind::kOneKernel: {
                SLUICE_ASSIGN_OR_RETURN(Work all, kernel(pieces(ranges, kTurn)));
                out.push_back(std::move(all));
                break;
            }
            case Kind::kKernels:
                for (const Range& piece : pieces(ranges, way.piece)) {
                    SLUICE_ASSIGN_OR_RETURN(Work one, kernel({piece}));
                    out.push_back(std::move(one));
                }
                break;
            case Kind::kCopies:
                for (const Range& piece : pieces(ranges, way.piece > 0 ? way.piece : ranges.front().bytes)) {
                    out.emplace_back([this, piece](int lane) {
                        return device_.copy(target_->data() + piece.begin, at(piece),
                                            static_cast<std::size_t>(piece.bytes), lane);
                    });
                }
                break;
            case Kind::kGets:
                for (const Range& range : ranges) {
                    out.emplace_back([this, range, rounds, piece = way.piece](int) -> Status {
                        for (std::int64_t round = 0; round < rounds; ++round) {
                            SLUICE_RETURN_IF_ERROR(gets_[static_cast<std::size_t>(range.owner)]
                                                       ->run(range.bytes, range.begin, piece)
                                                       .status());
                        }
                        return ok_status();
                    });
                }
                return out;
        }
        const std::vector<Work> once = out;
        for (std::int64_t round = 1; round < rounds; ++round) {
            out.insert(out.end(), once.begin(), once.end());
        }
        return out;
    }

    // Seconds from when all ranks are ready to the end of the work, which the lanes take piece by piece.
    Result<double> run(const std::vector<Work>& work, int lanes) {
        std::barrier ends(lanes + 1);
        std::atomic<std::size_t> next = 0;
        std::vector<Status> results(static_cast<std::size_t>(lanes));
        std::vector<std::thread> threads;
        for (int lane = 0; lane < lanes; ++lane) {
            threads.emplace_back([&, lane] {
                Status& result = results[static_cast<std::size_t>(lane)];
                ends.arrive_and_wait();
                for (std::size_t i = next++; i < work.size() && result.ok(); i = next++) {
                    result = work[i](lane);
                }
                ends.arrive_and_wait();
            });
        }
        const Status ready = bootstrap_.barrier(deadline());
        const Clock::time_point begin = Clock::now();
        ends.arrive_and_wait();
        ends.arrive_and_wait();
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        for (std::thread& thread : threads) {
            thread.join();
        }
        SLUICE_RETURN_IF_ERROR(ready);
        for (const Status& result : results) {
            SLUICE_RETURN_IF_ERROR(result);
        }
        return lanes > 0 ? seconds : 0;
    }

    Result<double> slowest_of(double mine) {
        SLUICE_ASSIGN_OR_RETURN(const auto all, bootstrap_.all_gather(std::as_bytes(std::span(&mine, 1)), deadline()));
        double slowest = 0;
        for (const auto& blob : all) {
            double seconds = 0;
            std::memcpy(&seconds, blob.data(), sizeof seconds);
            slowest = std::max(slowest, seconds);
        }
        return slowest;
    }

    Result<std::unique_ptr<DeviceProgram>> values_program(const std::vector<Range>& ranges, std::byte* memory) {
        std::vector<DeviceValues> values;
        for (const Range& range : ranges) {
            DeviceValues& one = values.emplace_back();
            one.copy.src_offset = one.copy.dst_offset = range.begin;
            one.copy.item = range.bytes;
            one.target = memory;
            one.name_hash = name_hash(fmt::format("memory of rank {}", range.owner));
            one.dtype = DType::kBF16;
        }
        return device_.compile_values(values);
    }

    Status verify(const std::vector<Range>& ranges) {
        SLUICE_ASSIGN_OR_RETURN(const auto values, values_program(ranges, target_->data()));
        SLUICE_ASSIGN_OR_RETURN(const std::uint64_t different, device_.count_other_values(*values, 1, 0));
        return different == 0 ? ok_status()
                              : Status(StatusCode::kMismatch,
                                       fmt::format("rank {} has read something else in {} places", rank_, different));
    }

    GpuLinksOptions options_;
    const Settings& settings_;
    Bootstrap& bootstrap_;
    Device& device_;
    int rank_;
    std::optional<Buffer> source_, target_;
    std::vector<std::optional<Buffer>> mapped_;  // by rank; none of one's own
    std::vector<std::unique_ptr<RawGet>> gets_;  // by owner
};

}  // namespace

Status bench_gpu_links(const GpuLinksOptions& options, nlohmann::json& rows) {
    SLUICE_ASSIGN_OR_RETURN(Settings settings, Settings::from_environment());
    settings.adapt_to_device();
    log::set_level(LogLevel::kWarning);
    SLUICE_ASSIGN_OR_RETURN(const auto mpi, MpiBootstrap::create());
    if (mpi->size() < 2) {
        return invalid_argument("links are measured between ranks; use mpirun -n with at least 2");
    }
    if (const std::int64_t least = (mpi->size() - 1) * kChunk; options.bytes < least) {
        return invalid_argument(
            fmt::format("--bytes {}: {} ranks need at least {}", options.bytes, mpi->size(), format_bytes(least)));
    }
    const int devices = std::max(1, static_cast<int>(probe_cuda().devices.size()));
    SLUICE_ASSIGN_OR_RETURN(const auto device, open_cuda_device(mpi->rank() % devices, settings.copy_threads));
    std::vector<Pattern> patterns = pairs(mpi->size());
    for (const std::string& text : options.at_once) {
        SLUICE_ASSIGN_OR_RETURN(Pattern pattern, parse_pattern(text, mpi->size()));
        patterns.push_back(std::move(pattern));
    }
    Links links(options, settings, *mpi, *device);
    SLUICE_RETURN_IF_ERROR(links.open());
    for (const Pattern& pattern : patterns) {
        for (const Way& way : kWays) {
            if (way.everywhere || pattern.probed) {
                SLUICE_RETURN_IF_ERROR(links.measure(pattern, way, rows));
            }
        }
    }
    SLUICE_RETURN_IF_ERROR(links.close());
    if (mpi->rank() != 0) {
        rows.clear();
    }
    mpi->finalize();
    return ok_status();
}

void print_gpu_links_rows(const nlohmann::json& rows) {
    for (const nlohmann::json& row : rows) {
        const nlohmann::json& rate = row["ingress_bytes_per_second"];
        fmt::print(stderr, "{:48}{:>10} {:8.1f} GB/s ({:.1f}-{:.1f})\n", row["name"].get<std::string>(),
                   human_bytes(row["bytes_of_one_reader"].get<std::int64_t>()), rate["median"].get<double>() * 1e-9,
                   rate["min"].get<double>() * 1e-9, rate["max"].get<double>() * 1e-9);
    }
}

}  // namespace sluice::bench

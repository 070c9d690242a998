#include "bench/gpu_kernels.h"

#include "bench/spread.h"
#include "planner/plan_summary.h"
#include "runtime/base/units.h"
#include "runtime/cuda/block_quantise.h"
#include "runtime/cuda/device_memory.h"
#include "runtime/cuda/device_program.h"
#include "runtime/services/copy_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

namespace sluice::bench {
namespace {

using Launch = std::function<Status(const CudaStream&)>;

constexpr std::byte kPoison{0xEE};

/// Memory, a stream, and a clock that runs on the device.
class Rig {
public:
    // The factor leaves room for gaps, and for the wider side of a conversion.
    static Result<Rig> create(std::int64_t bytes) {
        SLUICE_ASSIGN_OR_RETURN(Buffer source, allocate_device_memory(2 * bytes));
        SLUICE_ASSIGN_OR_RETURN(Buffer target, allocate_device_memory(2 * bytes));
        SLUICE_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::create());
        SLUICE_ASSIGN_OR_RETURN(CudaEvent begin, CudaEvent::create());
        SLUICE_ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::create());
        Rig rig{std::move(source), std::move(target), std::move(stream), std::move(begin), std::move(end), {}, {}};
        // Numbers that look like weights: what is all the same can be faster to move.
        std::vector<std::uint32_t> noise(16 << 20);
        std::uint64_t state = 1;
        for (std::uint32_t& word : noise) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            // Of either sign and some exponents, as f32 and as two bf16 or f16; no NaN and no infinity.
            word = (static_cast<std::uint32_t>(state >> 32) & 0x83FF83FFu) | 0x3C003C00u;
        }
        const auto portion = static_cast<std::int64_t>(noise.size() * sizeof(std::uint32_t));
        for (std::int64_t at = 0; at < 2 * bytes; at += portion) {
            SLUICE_RETURN_IF_ERROR(copy_async(rig.source.data() + at, reinterpret_cast<const std::byte*>(noise.data()),
                                              static_cast<std::size_t>(std::min(portion, 2 * bytes - at)), rig.stream));
        }
        SLUICE_RETURN_IF_ERROR(rig.stream.wait());
        SLUICE_ASSIGN_OR_RETURN(const std::uint64_t* secrets, upload_secrets(rig.arena, rig.stream));
        SLUICE_ASSIGN_OR_RETURN(rig.hash, HashLane::create(rig.arena, secrets, rig.stream));
        return rig;
    }

    Result<double> time(const Launch& launch) const {
        SLUICE_RETURN_IF_ERROR(begin.record(stream));
        SLUICE_RETURN_IF_ERROR(launch(stream));
        SLUICE_RETURN_IF_ERROR(end.record(stream));
        SLUICE_RETURN_IF_ERROR(end.wait());
        return end.seconds_since(begin);
    }

    Buffer source, target;
    CudaStream stream;
    CudaEvent begin, end;
    UploadArena arena;
    std::optional<HashLane> hash;
};

/// Times `launch`, which must move `moved` bytes (read and written together), and a plain copy of half as many, in turn.
Status measure(const Rig& rig, const GpuKernelOptions& options, const std::string& name, std::int64_t moved,
               const Launch& launch, nlohmann::json& rows) {
    std::vector<double> rates, raw_rates, shares;
    for (int i = 0; i < options.repetitions + 3; ++i) {
        const auto half = static_cast<std::size_t>(moved / 2);
        SLUICE_ASSIGN_OR_RETURN(const double raw, rig.time([&](const CudaStream& stream) {
            return copy_async(rig.target.data(), rig.source.data(), half, stream);
        }));
        SLUICE_ASSIGN_OR_RETURN(const double took, rig.time(launch));
        if (i >= 3) {
            rates.push_back(static_cast<double>(moved) / took);
            raw_rates.push_back(static_cast<double>(half) * 2 / raw);
            shares.push_back(rates.back() / raw_rates.back());
        }
    }
    rows.push_back({{"name", name},
                    {"bytes_moved", moved},
                    {"bytes_per_second", spread(rates)},
                    {"copy_bytes_per_second", spread(raw_rates)},
                    {"share", spread(shares)}});
    return ok_status();
}

// Runs with gaps of one run, cut into pieces of `piece` bytes. `strided` on the source side, the target side, or both.
std::vector<ProgramCopy> strided_pieces(const Rig& rig, std::int64_t bytes, std::int64_t run, std::int64_t piece,
                                        bool strided_source, bool strided_target) {
    std::vector<ProgramCopy> copies;
    const std::int64_t rows = std::max<std::int64_t>(1, piece / run);
    for (std::int64_t at = 0; at + rows * run <= bytes; at += rows * run) {
        ProgramCopy one;
        const std::int64_t source_step = strided_source ? 2 * run : run;
        const std::int64_t target_step = strided_target ? 2 * run : run;
        one.copy = {at / run * source_step, at / run * target_step, run, Dims{rows},
                    Dims{source_step},      Dims{target_step}};
        one.source = rig.source.data();
        one.target = rig.target.data();
        copies.push_back(std::move(one));
    }
    return copies;
}

Result<DeviceProgramView> compiled(Rig& rig, const std::vector<ProgramCopy>& copies) {
    SLUICE_ASSIGN_OR_RETURN(const CopyProgram program, compile_program(copies));
    return upload_program(program, rig.arena, rig.stream);
}

// Checks a program's effect on a sample against the host engine, so that what is timed is known to be right: what it must write is written,
// and what lies between is not.
Status check_copy(const Rig& rig, const std::vector<ProgramCopy>& copies, const DeviceProgramView& program) {
    SLUICE_RETURN_IF_ERROR(fill_async(rig.target.data(), kPoison, rig.target.size(), rig.stream));
    SLUICE_RETURN_IF_ERROR(launch_copy(program, {}, nullptr, rig.stream.handle()));
    for (const std::size_t i : {std::size_t{0}, copies.size() / 2, copies.size() - 1}) {
        ProgramCopy one = copies[i];
        // The first rows of what is large.
        if (one.copy.bytes() > (64 << 20)) {
            one.copy.sizes[0] = std::max<std::int64_t>(1, one.copy.sizes[0] * (64 << 20) / one.copy.bytes());
        }
        const auto extent = [&](const Dims& strides, std::int64_t item) {
            std::int64_t end = item;
            for (std::size_t d = 0; d < strides.size(); ++d) {
                end += (one.copy.sizes[d] - 1) * strides[d];
            }
            return static_cast<std::size_t>(end);
        };
        const bool converts = one.from != one.to;
        std::vector<std::byte> source(extent(one.copy.src_strides, one.copy.item));
        std::vector<std::byte> target(extent(one.copy.dst_strides, converts ? size_of(one.to) : one.copy.item));
        SLUICE_RETURN_IF_ERROR(copy_async(source.data(), one.source + one.copy.src_offset, source.size(), rig.stream));
        SLUICE_RETURN_IF_ERROR(copy_async(target.data(), one.target + one.copy.dst_offset, target.size(), rig.stream));
        SLUICE_RETURN_IF_ERROR(rig.stream.wait());
        std::vector<std::byte> expected(target.size(), kPoison);
        StridedCopy here = one.copy;
        here.src_offset = here.dst_offset = 0;
        if (converts) {
            converting_copy(here, one.from, one.to, source.data(), expected.data());
        } else {
            strided_copy(here, source.data(), expected.data());
        }
        if (std::memcmp(expected.data(), target.data(), target.size()) != 0) {
            return Status(StatusCode::kMismatch, fmt::format("piece {} of {} was copied wrongly", i, copies.size()));
        }
    }
    return ok_status();
}

Status measure_program(Rig& rig, const GpuKernelOptions& options, const std::string& name,
                       const std::vector<ProgramCopy>& copies, std::int64_t moved, nlohmann::json& rows) {
    SLUICE_ASSIGN_OR_RETURN(const DeviceProgramView program, compiled(rig, copies));
    SLUICE_RETURN_IF_ERROR(check_copy(rig, copies, program).with_context(name));
    return measure(
        rig, options, name, moved,
        [&](const CudaStream& stream) { return launch_copy(program, {}, nullptr, stream.handle()); }, rows);
}

// Checks the first and the last matrix against what the host makes of them, bit by bit.
Status check_quantise(const Rig& rig, const BlockQuantisation& job) {
    const auto elements = static_cast<std::size_t>(job.rows * job.columns);
    const auto blocks = static_cast<std::size_t>(job.block_rows() * job.block_columns());
    const auto matrices = static_cast<std::size_t>(job.matrices);
    const std::size_t source_bytes = elements * static_cast<std::size_t>(size_of(job.from));
    const std::size_t scale_bytes = blocks * sizeof(float);
    auto* scales_of_all = reinterpret_cast<std::byte*>(job.scales);
    SLUICE_RETURN_IF_ERROR(fill_async(job.values, kPoison, matrices * elements, rig.stream));
    SLUICE_RETURN_IF_ERROR(fill_async(scales_of_all, kPoison, matrices * scale_bytes, rig.stream));
    SLUICE_RETURN_IF_ERROR(launch_quantise(job, rig.stream.handle()));
    for (const std::size_t matrix : {std::size_t{0}, matrices - 1}) {
        std::vector<std::byte> source(source_bytes), values(elements), scales(scale_bytes), expected(elements);
        std::vector<float> expected_scales(blocks);
        SLUICE_RETURN_IF_ERROR(copy_async(source.data(), job.source + matrix * source_bytes, source_bytes, rig.stream));
        SLUICE_RETURN_IF_ERROR(copy_async(values.data(), job.values + matrix * elements, elements, rig.stream));
        SLUICE_RETURN_IF_ERROR(
            copy_async(scales.data(), scales_of_all + matrix * scale_bytes, scale_bytes, rig.stream));
        SLUICE_RETURN_IF_ERROR(rig.stream.wait());
        BlockQuantisation here = job;
        here.matrices = 1;
        here.source = source.data();
        here.values = expected.data();
        here.scales = expected_scales.data();
        quantise_blocks(here);
        if (values != expected || std::memcmp(scales.data(), expected_scales.data(), scale_bytes) != 0) {
            return Status(StatusCode::kMismatch,
                          fmt::format("matrix {} of {} was quantised wrongly", matrix, matrices));
        }
    }
    return ok_status();
}

}  // namespace

Status bench_gpu_copy(const GpuKernelOptions& options, nlohmann::json& rows) {
    SLUICE_ASSIGN_OR_RETURN(Rig rig, Rig::create(options.bytes));
    const std::int64_t bytes = options.bytes;
    constexpr std::int64_t kPiece = 4 << 20;
    for (const std::int64_t run : {64, 128, 192, 384, 768, 1536, 4096, 65536, 1 << 20, 4 << 20}) {
        struct Kind {
            const char* name;
            bool source, target;
        };
        for (const Kind kind : {Kind{"pack", true, false}, Kind{"scatter", false, true}, Kind{"strided", true, true}}) {
            const auto copies = strided_pieces(rig, bytes, run, kPiece, kind.source, kind.target);
            const std::int64_t pieces_bytes = static_cast<std::int64_t>(copies.size()) * copies.front().copy.bytes();
            SLUICE_RETURN_IF_ERROR(measure_program(rig, options, fmt::format("{} {}", kind.name, format_bytes(run)),
                                                   copies, 2 * pieces_bytes, rows));
        }
    }
    for (const std::int64_t piece : {1536, 16 << 10}) {
        auto copies = strided_pieces(rig, std::min(bytes, 100'000 * piece), 768, piece, true, false);
        SLUICE_RETURN_IF_ERROR(
            measure_program(rig, options, fmt::format("pack 768B, {} pieces", copies.size()), copies,
                            2 * static_cast<std::int64_t>(copies.size()) * copies.front().copy.bytes(), rows));
    }
    // 64 MiB, as one chunk is: the launch counts too.
    const auto chunk = strided_pieces(rig, 64 << 20, 768, kPiece, true, false);
    SLUICE_RETURN_IF_ERROR(measure_program(rig, options, "pack 768B, one chunk of 64M", chunk,
                                           2 * static_cast<std::int64_t>(chunk.size()) * chunk.front().copy.bytes(),
                                           rows));
    // Bytes that are not aligned to more than 8, 4 and 2.
    for (const std::int64_t grain : {8, 4, 2}) {
        auto copies = strided_pieces(rig, bytes / 4, 1536, kPiece, true, false);
        for (ProgramCopy& one : copies) {
            one.copy.src_offset += grain;
        }
        SLUICE_RETURN_IF_ERROR(
            measure_program(rig, options, fmt::format("pack 1.5K, aligned to {}", grain), copies,
                            2 * static_cast<std::int64_t>(copies.size()) * copies.front().copy.bytes(), rows));
    }
    struct Cast {
        DType from, to;
    };
    for (const Cast cast : {Cast{DType::kF32, DType::kBF16}, Cast{DType::kF32, DType::kF16},
                            Cast{DType::kBF16, DType::kF32}, Cast{DType::kF16, DType::kF32}}) {
        for (const bool strided : {false, true}) {
            const std::int64_t elements = bytes / 4;
            const std::int64_t row = strided ? 384 : 1 << 20;
            ProgramCopy one;
            one.copy = {0,
                        0,
                        size_of(cast.from),
                        Dims{elements / row, row},
                        Dims{row * size_of(cast.from) * (strided ? 2 : 1), size_of(cast.from)},
                        Dims{row * size_of(cast.to), size_of(cast.to)}};
            one.source = rig.source.data();
            one.target = rig.target.data();
            one.from = cast.from;
            one.to = cast.to;
            SLUICE_RETURN_IF_ERROR(measure_program(rig, options,
                                                   fmt::format("cast {} to {}{}", to_string(cast.from),
                                                               to_string(cast.to), strided ? ", rows of 384" : ""),
                                                   {one}, elements / row * row * 6, rows));
        }
    }
    return ok_status();
}

Status bench_gpu_quantise(const GpuKernelOptions& options, nlohmann::json& rows) {
    SLUICE_ASSIGN_OR_RETURN(Rig rig, Rig::create(options.bytes));
    for (const DType from : {DType::kBF16, DType::kF32}) {
        BlockQuantisation job;
        job.from = from;
        job.rows = 2048;
        job.columns = 4096;
        job.matrices = options.bytes / size_of(from) / (job.rows * job.columns);
        job.source = rig.source.data();
        job.values = rig.target.data();
        const std::int64_t elements = job.matrices * job.rows * job.columns;
        job.scales = reinterpret_cast<float*>(rig.target.data() + elements);
        const std::int64_t scales =
            elements / (kQuantiseBlock * kQuantiseBlock) * static_cast<std::int64_t>(sizeof(float));
        const std::string name = fmt::format("quantise {}", to_string(from));
        SLUICE_RETURN_IF_ERROR(check_quantise(rig, job).with_context(name));
        SLUICE_RETURN_IF_ERROR(measure(
            rig, options, name, elements * (size_of(from) + 1) + scales,
            [&](const CudaStream& stream) { return launch_quantise(job, stream.handle()); }, rows));
    }
    return ok_status();
}

Status bench_gpu_checksum(const GpuKernelOptions& options, nlohmann::json& rows) {
    SLUICE_ASSIGN_OR_RETURN(Rig rig, Rig::create(options.bytes));
    for (const std::int64_t run : {192, 768, 4096, 4 << 20}) {
        const auto copies = strided_pieces(rig, options.bytes, run, 4 << 20, true, false);
        const std::int64_t bytes = static_cast<std::int64_t>(copies.size()) * copies.front().copy.bytes();
        SLUICE_ASSIGN_OR_RETURN(const DeviceProgramView program, compiled(rig, copies));
        const HashSink sink = rig.hash->sink();
        SLUICE_RETURN_IF_ERROR(measure(
            rig, options, fmt::format("checksum of runs of {}", format_bytes(run)), bytes,
            [&](const CudaStream& stream) {
                return launch_hash(program, {}, CopySide::kSource, sink, stream.handle());
            },
            rows));
        const std::uint64_t alone = rig.hash->digest();
        SLUICE_RETURN_IF_ERROR(measure(
            rig, options, fmt::format("pack with checksum, runs of {}", format_bytes(run)), 2 * bytes,
            [&](const CudaStream& stream) { return launch_copy(program, {}, &sink, stream.handle()); }, rows));
        if (rig.hash->digest() != alone) {
            return Status(StatusCode::kMismatch, "a packed copy has another checksum than its source");
        }
    }
    return ok_status();
}

void print_gpu_rows(const nlohmann::json& rows) {
    fmt::print(stderr, "{:36}{:>12}{:>12}{:>12}{:>9}{:>16}\n", "kernel", "bytes", "moved/s", "copy/s", "share",
               "spread");
    const auto tera = [](const nlohmann::json& rate) { return rate["median"].get<double>() * 1e-12; };
    for (const nlohmann::json& row : rows) {
        const nlohmann::json& share = row["share"];
        fmt::print(stderr, "{:36}{:>12}{:>9.3f} TB{:>9.3f} TB{:>9.3f}{:>16}\n", row["name"].get<std::string>(),
                   human_bytes(row["bytes_moved"].get<std::int64_t>()), tera(row["bytes_per_second"]),
                   tera(row["copy_bytes_per_second"]), share["median"].get<double>(),
                   fmt::format("{:.3f}-{:.3f}", share["min"].get<double>(), share["max"].get<double>()));
    }
}

}  // namespace sluice::bench

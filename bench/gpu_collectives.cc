#include "bench/gpu_collectives.h"

#include "bench/spread.h"
#include "cli/nccl_ranks.h"
#include "runtime/base/settings.h"
#include "runtime/base/units.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_probe.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "runtime/services/log.h"
#include "runtime/services/tensor_values.h"

#include <fmt/format.h>

#include <chrono>
#include <vector>

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSizes[] = {std::int64_t{64} << 20, std::int64_t{256} << 20, std::int64_t{1} << 30,
                                   std::int64_t{4} << 30};
// Back to back, as transfers are that are tuned.
constexpr int kInARow = 4;

/// A rank's part.
class Collectives {
public:
    Collectives(const GpuCollectivesOptions& options, Bootstrap& bootstrap, Device& device, NcclGroup& nccl)
        : options_(options), bootstrap_(bootstrap), device_(device), nccl_(nccl) {}

    Status run(nlohmann::json& rows) {
        for (const std::int64_t bytes : kSizes) {
            SLUICE_ASSIGN_OR_RETURN(const Buffer buffer, device_.allocate(bytes));
            std::byte* const data = buffer.data();
            SLUICE_RETURN_IF_ERROR(
                measure(rows, "broadcast", bytes, bytes, 0, nccl_.rank() == 0 ? bytes : 0, data,
                        [&](Deadline deadline) { return nccl_.broadcast(data, bytes, 0, deadline); }));
            const std::int64_t part = bytes / nccl_.size() / 16 * 16;
            SLUICE_RETURN_IF_ERROR(measure(rows, "all-gather", part * nccl_.size(), part * (nccl_.size() - 1),
                                           part * nccl_.rank(), part, data,
                                           [&](Deadline deadline) { return nccl_.all_gather(data, part, deadline); }));
        }
        return ok_status();
    }

private:
    [[nodiscard]] static Deadline deadline() { return Deadline::after(std::chrono::minutes(2)); }

    Result<std::unique_ptr<DeviceProgram>> values(std::byte* data, std::int64_t begin, std::int64_t bytes) {
        DeviceValues one;
        one.copy.src_offset = one.copy.dst_offset = begin;
        one.copy.item = bytes;
        one.target = data;
        one.name_hash = name_hash("collective");
        one.dtype = DType::kBF16;
        return device_.compile_values({&one, 1});
    }

    // This rank's own bytes are `own` from `own_begin` on; all `bytes` are right in the end, and `received` of them came from others.
    template <class Collective>
    Status measure(nlohmann::json& rows, const char* name, std::int64_t bytes, std::int64_t received,
                   std::int64_t own_begin, std::int64_t own, std::byte* data, Collective&& collective) {
        SLUICE_RETURN_IF_ERROR(device_.fill(data, std::byte{0xAB}, static_cast<std::size_t>(bytes), 0));
        if (own > 0) {
            SLUICE_ASSIGN_OR_RETURN(const auto mine, values(data, own_begin, own));
            SLUICE_RETURN_IF_ERROR(device_.fill_values(*mine, 1, 0));
        }
        std::vector<double> rates;
        for (int repetition = 0; repetition <= options_.repetitions; ++repetition) {
            SLUICE_RETURN_IF_ERROR(bootstrap_.barrier(deadline()));
            const Clock::time_point begin = Clock::now();
            for (int i = 0; i < kInARow; ++i) {
                SLUICE_RETURN_IF_ERROR(collective(deadline()));
            }
            SLUICE_RETURN_IF_ERROR(nccl_.wait(deadline()));
            SLUICE_RETURN_IF_ERROR(bootstrap_.barrier(deadline()));
            const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
            if (repetition > 0) {  // the first opens channels
                rates.push_back(static_cast<double>(received) * kInARow / seconds);
            }
        }
        SLUICE_ASSIGN_OR_RETURN(const auto all, values(data, 0, bytes));
        SLUICE_ASSIGN_OR_RETURN(const std::uint64_t different, device_.count_other_values(*all, 1, 0));
        if (different > 0) {
            return {StatusCode::kMismatch, fmt::format("{} of {}: rank {} got something else in {} places", name,
                                                       format_bytes(bytes), nccl_.rank(), different)};
        }
        rows.push_back({{"name", fmt::format("{}, {}", name, format_bytes(bytes))},
                        {"collective", name},
                        {"bytes", bytes},
                        {"ingress_bytes_per_second", spread(rates)}});
        return ok_status();
    }

    GpuCollectivesOptions options_;
    Bootstrap& bootstrap_;
    Device& device_;
    NcclGroup& nccl_;
};

}  // namespace

Status bench_gpu_collectives(const GpuCollectivesOptions& options, nlohmann::json& rows) {
    log::set_level(LogLevel::kWarning);
    SLUICE_ASSIGN_OR_RETURN(const auto mpi, MpiBootstrap::create());
    const int devices = static_cast<int>(probe_cuda().devices.size());
    if (mpi->size() < 2 || mpi->size() > devices) {
        return invalid_argument(
            fmt::format("collectives need two ranks at least, each with a GPU of its own: {} ranks were "
                        "started, and there are {} GPUs",
                        mpi->size(), devices));
    }
    SLUICE_ASSIGN_OR_RETURN(const auto device, open_cuda_device(mpi->rank(), 1));
    SLUICE_ASSIGN_OR_RETURN(const auto nccl, cli::open_nccl_ranks(*mpi, mpi->rank(), mpi->size(), mpi->rank(),
                                                                  Deadline::after(std::chrono::minutes(1))));
    SLUICE_RETURN_IF_ERROR(Collectives(options, *mpi, *device, *nccl).run(rows));
    if (mpi->rank() != 0) {
        rows.clear();
    }
    mpi->finalize();
    return ok_status();
}

void print_gpu_collectives_rows(const nlohmann::json& rows) {
    for (const nlohmann::json& row : rows) {
        const nlohmann::json& rate = row["ingress_bytes_per_second"];
        fmt::print(stderr, "{:24}{:8.1f} GB/s ({:.1f}-{:.1f})\n", row["name"].get<std::string>(),
                   rate["median"].get<double>() * 1e-9, rate["min"].get<double>() * 1e-9,
                   rate["max"].get<double>() * 1e-9);
    }
}

}  // namespace sluice::bench

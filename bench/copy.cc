// Speed of the copy engine on this machine: strided copies by length of run, transposes, conversions, hashes, values.
#include "runtime/services/copy_engine.h"
#include "runtime/services/tensor_values.h"

#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

namespace sluice {
namespace {

constexpr std::int64_t kTotal = std::int64_t{256} << 20;

struct Buffers {
    explicit Buffers(std::int64_t bytes = kTotal)
        : src(static_cast<std::size_t>(2 * bytes), std::byte{1}), dst(static_cast<std::size_t>(bytes), std::byte{2}) {}
    std::vector<std::byte> src;
    std::vector<std::byte> dst;
};

// Runs of `item` bytes with a gap of one run between them, `total` bytes in all, packed.
StridedCopy runs(std::int64_t item, std::int64_t total) {
    return {0, 0, item, Dims{total / item}, Dims{2 * item}, Dims{item}};
}

void report(benchmark::State& state, std::int64_t bytes) {
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * bytes);
}

void strided(benchmark::State& state) {
    Buffers buffers;
    const StridedCopy copy = runs(state.range(0), kTotal);
    for (auto _ : state) {
        strided_copy(copy, buffers.src.data(), buffers.dst.data());
    }
    report(state, copy.bytes());
}
BENCHMARK(strided)->Arg(2)->Arg(16)->Arg(48)->Arg(96)->Arg(192)->Arg(384)->Arg(768)->Arg(1536)->Arg(4096)->Arg(65536);

// The same by one memcpy per run: what the streaming stores have to beat.
void strided_by_memcpy(benchmark::State& state) {
    Buffers buffers;
    const StridedCopy copy = runs(state.range(0), kTotal);
    for (auto _ : state) {
        for_each_item(copy, [&](std::int64_t src, std::int64_t dst) {
            std::memcpy(buffers.dst.data() + dst, buffers.src.data() + src, static_cast<std::size_t>(copy.item));
        });
    }
    report(state, copy.bytes());
}
BENCHMARK(strided_by_memcpy)->Arg(768)->Arg(4096)->Arg(65536);

// The other direction: from packed form into runs with gaps.
void scatter(benchmark::State& state) {
    Buffers buffers;
    const std::int64_t item = state.range(0);
    const StridedCopy copy{0, 0, item, Dims{kTotal / item / 2}, Dims{item}, Dims{2 * item}};
    for (auto _ : state) {
        strided_copy(copy, buffers.src.data(), buffers.dst.data());
    }
    report(state, copy.bytes());
}
BENCHMARK(scatter)->Arg(96)->Arg(192)->Arg(384)->Arg(768)->Arg(4096)->Arg(65536);

// One chunk, again and again: the size at which streaming starts.
void strided_chunk(benchmark::State& state) {
    const std::int64_t total = state.range(0);
    Buffers buffers(total);
    const StridedCopy copy = runs(1536, total);
    for (auto _ : state) {
        strided_copy(copy, buffers.src.data(), buffers.dst.data());
    }
    report(state, copy.bytes());
}
BENCHMARK(strided_chunk)->Arg(256 << 10)->Arg(1 << 20)->Arg(4 << 20)->Arg(16 << 20);

void transpose(benchmark::State& state) {
    Buffers buffers;
    const std::int64_t item = state.range(0);
    const std::int64_t rows = 4096;
    const std::int64_t columns = kTotal / item / rows;
    const StridedCopy copy{0, 0, item, Dims{columns, rows}, Dims{item, columns * item}, Dims{rows * item, item}};
    for (auto _ : state) {
        strided_copy(copy, buffers.src.data(), buffers.dst.data());
    }
    report(state, copy.bytes());
}
BENCHMARK(transpose)->Arg(1)->Arg(2)->Arg(4);

void convert(benchmark::State& state, DType from, DType to) {
    Buffers buffers;
    const std::int64_t count = kTotal / 8;
    const StridedCopy copy{0, 0, size_of(from), Dims{count}, Dims{size_of(from)}, Dims{size_of(to)}};
    for (auto _ : state) {
        converting_copy(copy, from, to, buffers.src.data(), buffers.dst.data());
    }
    report(state, count * size_of(from));
}
BENCHMARK_CAPTURE(convert, f32_bf16, DType::kF32, DType::kBF16);
BENCHMARK_CAPTURE(convert, bf16_f32, DType::kBF16, DType::kF32);
BENCHMARK_CAPTURE(convert, f32_f16, DType::kF32, DType::kF16);
BENCHMARK_CAPTURE(convert, f16_f32, DType::kF16, DType::kF32);
BENCHMARK_CAPTURE(convert, f64_bf16, DType::kF64, DType::kBF16);

void hash(benchmark::State& state) {
    Buffers buffers;
    const StridedCopy copy = runs(state.range(0), kTotal);
    ChunkHash chunk_hash;
    for (auto _ : state) {
        chunk_hash.update_source(copy, buffers.src.data());
        benchmark::DoNotOptimize(chunk_hash.digest());
    }
    report(state, copy.bytes());
}
BENCHMARK(hash)->Arg(2)->Arg(96)->Arg(768)->Arg(4096)->Arg(1 << 20);

void generate(benchmark::State& state) {
    Buffers buffers(std::int64_t{16} << 20);
    const std::int64_t count = std::int64_t{8} << 20;
    for (auto _ : state) {
        fill_generated(1, DType::kBF16, 0, count, state.range(0), buffers.dst.data());
    }
    report(state, 2 * count);
}
BENCHMARK(generate)->Arg(1)->Arg(2);

}  // namespace
}  // namespace sluice

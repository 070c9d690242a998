#include "runtime/services/copy_kernels.h"

#include "runtime/services/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <utility>

namespace sluice::kernels {
namespace {

template <class CopyItem>
void walk(const Box& box, const std::byte* src, std::byte* dst, CopyItem copy_item) {
    for (std::int64_t r = 0; r < box.rows; ++r) {
        const std::byte* from = src + r * box.src_row;
        std::byte* to = dst + r * box.dst_row;
        for (std::int64_t c = 0; c < box.columns; ++c) {
            copy_item(to, from);
            from += box.src_column;
            to += box.dst_column;
        }
    }
}

// memcpy of a constant size is a load and a store, not a call.
template <std::size_t kSize>
void copy_fixed(const Box& box, const std::byte* src, std::byte* dst) {
    walk(box, src, dst, [](std::byte* to, const std::byte* from) { std::memcpy(to, from, kSize); });
}

// Items of kHalf < size < 2 * kHalf bytes: their first and their last kHalf bytes, which overlap.
template <std::size_t kHalf>
void copy_two_halves(const Box& box, const std::byte* src, std::byte* dst) {
    const std::size_t second = box.item - kHalf;
    walk(box, src, dst, [second](std::byte* to, const std::byte* from) {
        std::byte head[kHalf];
        std::byte tail[kHalf];
        std::memcpy(head, from, kHalf);
        std::memcpy(tail, from + second, kHalf);
        std::memcpy(to, head, kHalf);
        std::memcpy(to + second, tail, kHalf);
    });
}

void copy_any(const Box& box, const std::byte* src, std::byte* dst) {
    walk(box, src, dst, [&box](std::byte* to, const std::byte* from) { std::memcpy(to, from, box.item); });
}

// A square of items that is transposed in registers: kVector bytes are one row of it.
constexpr std::size_t kVector = 16;

template <class T>
struct Square {
    static constexpr std::size_t kSide = kVector / sizeof(T);
    typedef T Vector __attribute__((vector_size(kVector)));

    template <std::size_t kFrom, std::size_t... kIndex>
    static Vector interleave(Vector a, Vector b, std::index_sequence<kIndex...>) {
        return __builtin_shufflevector(a, b, (kFrom + kIndex / 2 + kIndex % 2 * kSide)...);
    }

    // Interleaving row i with row i + half, once per doubling of the side, moves every item to its mirrored place.
    static void transpose(Vector (&rows)[kSide]) {
        constexpr auto kIndices = std::make_index_sequence<kSide>();
        for (std::size_t round = 1; round < kSide; round *= 2) {
            Vector next[kSide];
            for (std::size_t i = 0; i < kSide / 2; ++i) {
                next[2 * i] = interleave<0>(rows[i], rows[i + kSide / 2], kIndices);
                next[2 * i + 1] = interleave<kSide / 2>(rows[i], rows[i + kSide / 2], kIndices);
            }
            std::memcpy(rows, next, sizeof(rows));
        }
    }
};

// One tile of at most kTile x kTile items, from the source into `tile`, whose rows are those of the destination.
template <class T, std::int64_t kTile>
void transpose_tile(const Box& box, const std::byte* src, std::byte* tile) {
    constexpr auto kSide = static_cast<std::int64_t>(Square<T>::kSide);
    constexpr auto kItem = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t square_rows = box.rows / kSide * kSide;
    const std::int64_t square_columns = box.columns / kSide * kSide;
    for (std::int64_t c = 0; c < square_columns; c += kSide) {
        for (std::int64_t r = 0; r < square_rows; r += kSide) {
            typename Square<T>::Vector rows[Square<T>::kSide];
            for (std::int64_t k = 0; k < kSide; ++k) {
                std::memcpy(&rows[k], src + r * kItem + (c + k) * box.src_column, kVector);
            }
            Square<T>::transpose(rows);
            for (std::int64_t k = 0; k < kSide; ++k) {
                std::memcpy(tile + ((r + k) * kTile + c) * kItem, &rows[k], kVector);
            }
        }
    }
    for (std::int64_t c = 0; c < box.columns; ++c) {
        for (std::int64_t r = c < square_columns ? square_rows : 0; r < box.rows; ++r) {
            std::memcpy(tile + (r * kTile + c) * kItem, src + r * kItem + c * box.src_column, sizeof(T));
        }
    }
}

// Tile by tile through a small buffer, so that each line of the source and of the destination is touched once: rows a
// power of two apart, as those of weights are, would push each other out of the caches.
template <class T>
void transpose_box(const Box& box, const std::byte* src, std::byte* dst) {
    constexpr std::int64_t kTile = sizeof(T) <= 4 ? 64 : 32;
    constexpr auto kItem = static_cast<std::int64_t>(sizeof(T));
    alignas(64) std::byte tile[kTile * kTile * kItem];
    Box part = box;
    for (std::int64_t r = 0; r < box.rows; r += kTile) {
        part.rows = std::min(kTile, box.rows - r);
        for (std::int64_t c = 0; c < box.columns; c += kTile) {
            part.columns = std::min(kTile, box.columns - c);
            transpose_tile<T, kTile>(part, src + r * kItem + c * box.src_column, tile);
            for (std::int64_t k = 0; k < part.rows; ++k) {
                std::memcpy(dst + (r + k) * box.dst_row + c * kItem, tile + k * kTile * kItem,
                            static_cast<std::size_t>(part.columns * kItem));
            }
        }
    }
}

#if defined(__x86_64__)
constexpr std::size_t kLine = 64;

using StreamLines = void (*)(std::byte* to, const std::byte* from, std::size_t lines);

void stream_lines_sse2(std::byte* to, const std::byte* from, std::size_t lines) {
    for (; lines > 0; --lines, to += kLine, from += kLine) {
        const auto* in = reinterpret_cast<const __m128i*>(from);
        auto* out = reinterpret_cast<__m128i*>(to);
        const __m128i a = _mm_loadu_si128(in);
        const __m128i b = _mm_loadu_si128(in + 1);
        const __m128i c = _mm_loadu_si128(in + 2);
        const __m128i d = _mm_loadu_si128(in + 3);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
}

SLUICE_TARGET_AVX2 void stream_lines_avx2(std::byte* to, const std::byte* from, std::size_t lines) {
    for (; lines > 0; --lines, to += kLine, from += kLine) {
        const auto* in = reinterpret_cast<const __m256i*>(from);
        auto* out = reinterpret_cast<__m256i*>(to);
        const __m256i a = _mm256_loadu_si256(in);
        const __m256i b = _mm256_loadu_si256(in + 1);
        _mm256_stream_si256(out, a);
        _mm256_stream_si256(out + 1, b);
    }
}

// The processor follows a run by itself but does not know where the next one starts.
void prefetch_run(const std::byte* from, std::size_t size) {
    constexpr std::size_t kMost = 1024;
    for (std::size_t at = 0; at < std::min(size, kMost); at += kLine) {
        _mm_prefetch(reinterpret_cast<const char*>(from + at), _MM_HINT_T0);
    }
}

// Whole cache lines are streamed; a line that is written in part would be read back by the memory controller.
template <StreamLines stream_lines>
void stream_box(const Box& box, const std::byte* src, std::byte* dst) {
    const bool gaps = box.src_column != static_cast<std::int64_t>(box.item);
    walk(box, src, dst, [&box, gaps](std::byte* to, const std::byte* from) {
        if (gaps) {
            prefetch_run(from + box.src_column, box.item);  // Past the last run it has no effect.
        }
        const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLine;
        const std::size_t head = std::min(misaligned == 0 ? 0 : kLine - misaligned, box.item);
        const std::size_t lines = (box.item - head) / kLine;
        const std::size_t streamed = head + lines * kLine;
        if (head != 0) {
            std::memcpy(to, from, head);
        }
        stream_lines(to + head, from + head, lines);
        if (streamed != box.item) {
            std::memcpy(to + streamed, from + streamed, box.item - streamed);
        }
    });
    _mm_sfence();
}
#endif

}  // namespace

CopyBox copy_box_for(std::size_t item) {
    switch (item) {
        case 1:
            return copy_fixed<1>;
        case 2:
            return copy_fixed<2>;
        case 4:
            return copy_fixed<4>;
        case 8:
            return copy_fixed<8>;
        case 16:
            return copy_fixed<16>;
        case 32:
            return copy_fixed<32>;
        case 64:
            return copy_fixed<64>;
        case 128:
            return copy_fixed<128>;
        default:
            break;
    }
    if (item > 128) {
        return copy_any;
    }
    return item > 64   ? copy_two_halves<64>
           : item > 32 ? copy_two_halves<32>
           : item > 16 ? copy_two_halves<16>
           : item > 8  ? copy_two_halves<8>
           : item > 4  ? copy_two_halves<4>
                       : copy_two_halves<2>;
}

CopyBox transpose_box_for(std::size_t item) {
    switch (item) {
        case 1:
            return transpose_box<std::uint8_t>;
        case 2:
            return transpose_box<std::uint16_t>;
        case 4:
            return transpose_box<std::uint32_t>;
        case 8:
            return transpose_box<std::uint64_t>;
        default:
            return nullptr;
    }
}

CopyBox streaming_copy_box([[maybe_unused]] bool avx2) {
#if defined(__x86_64__)
    return avx2 ? stream_box<stream_lines_avx2> : stream_box<stream_lines_sse2>;
#else
    return copy_any;
#endif
}

}  // namespace sluice::kernels

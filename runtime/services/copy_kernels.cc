#include "runtime/services/copy_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>

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

#if defined(__x86_64__)
constexpr std::size_t kLine = 64;

// Whole cache lines are streamed; a line that is written in part would be read back by the memory controller.
template <class StreamLines>
void stream_items(const Box& box, const std::byte* src, std::byte* dst, StreamLines stream_lines) {
    walk(box, src, dst, [&box, stream_lines](std::byte* to, const std::byte* from) {
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

void stream_sse2(const Box& box, const std::byte* src, std::byte* dst) {
    stream_items(box, src, dst, [](std::byte* to, const std::byte* from, std::size_t lines) {
        for (std::size_t i = 0; i < lines; ++i, to += kLine, from += kLine) {
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
    });
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

CopyBox streaming_copy_box() {
#if defined(__x86_64__)
    return stream_sse2;
#else
    return copy_any;
#endif
}

}  // namespace sluice::kernels

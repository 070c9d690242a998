#include "runtime/services/copy_engine.h"

#include "runtime/base/float_bits.h"
#include "runtime/base/mix64.h"
#include "runtime/services/copy_kernels.h"
#include "runtime/services/cpu_features.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace sluice {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kPoison{0xA5};

Bytes random_bytes(std::mt19937_64& random, std::size_t size) {
    Bytes out(size);
    for (std::size_t at = 0; at < size; at += 8) {
        const std::uint64_t word = random();
        std::memcpy(out.data() + at, &word, std::min<std::size_t>(8, size - at));
    }
    return out;
}

// By the definition of StridedCopy: calls visit(source offset, destination offset) per item, by index arithmetic.
template <class Visit>
void naive_items(const StridedCopy& copy, Visit visit) {
    std::int64_t items = 1;
    for (const std::int64_t size : copy.sizes) {
        items *= size;
    }
    for (std::int64_t flat = 0; flat < items; ++flat) {
        std::int64_t rest = flat;
        std::int64_t src = copy.src_offset;
        std::int64_t dst = copy.dst_offset;
        for (std::size_t d = copy.sizes.size(); d-- > 0;) {
            src += rest % copy.sizes[d] * copy.src_strides[d];
            dst += rest % copy.sizes[d] * copy.dst_strides[d];
            rest /= copy.sizes[d];
        }
        visit(src, dst);
    }
}

void naive_copy(const StridedCopy& copy, const std::byte* src, std::byte* dst) {
    naive_items(copy, [&](std::int64_t s, std::int64_t d) {
        for (std::int64_t b = 0; b < copy.item; ++b) {
            dst[d + b] = src[s + b];
        }
    });
}

// One past the last byte of a side.
std::size_t extent(const StridedCopy& copy, std::int64_t offset, const Dims& strides, std::int64_t item) {
    std::int64_t last = offset + item;
    for (std::size_t d = 0; d < copy.sizes.size(); ++d) {
        last += std::max<std::int64_t>(copy.sizes[d] - 1, 0) * strides[d];
    }
    return static_cast<std::size_t>(last);
}

class CopyEngineTest : public ::testing::Test {
protected:
    std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n)); }

    // Strides of a box whose dimensions lie in memory in any order, with or without gaps.
    Dims strides(const Dims& sizes, std::int64_t item, std::int64_t max_gap) {
        std::vector<std::size_t> order(sizes.size());
        std::iota(order.begin(), order.end(), 0);
        if (below(2) == 0) {
            std::shuffle(order.begin(), order.end(), random_);
        }
        Dims out(sizes.size(), 0);
        std::int64_t step = item;
        for (std::size_t k = order.size(); k-- > 0;) {
            step += below(3) == 0 ? below(max_gap + 1) : 0;
            out[order[k]] = step;
            step *= std::max<std::int64_t>(sizes[order[k]], 1);
        }
        return out;
    }

    StridedCopy random_copy(std::int64_t max_item, std::int64_t max_size, std::int64_t max_rank, std::int64_t max_gap) {
        StridedCopy copy;
        copy.item = 1 + below(max_item);
        const std::int64_t rank = below(max_rank + 1);
        for (std::int64_t d = 0; d < rank; ++d) {
            copy.sizes.push_back(below(40) == 0 ? 0 : 1 + below(max_size));
        }
        copy.src_strides = strides(copy.sizes, copy.item, max_gap);
        copy.dst_strides = strides(copy.sizes, copy.item, max_gap);
        if (rank > 0 && below(6) == 0) {
            copy.src_strides[static_cast<std::size_t>(below(rank))] = 0;
        }
        copy.src_offset = below(70);
        copy.dst_offset = below(70);
        return copy;
    }

    void check(const StridedCopy& copy) {
        // Exactly as large as needed, so that AddressSanitizer sees a byte too many.
        const Bytes src = random_bytes(random_, extent(copy, copy.src_offset, copy.src_strides, copy.item));
        Bytes expected(extent(copy, copy.dst_offset, copy.dst_strides, copy.item), kPoison);
        Bytes actual = expected;
        naive_copy(copy, src.data(), expected.data());
        strided_copy(copy, src.data(), actual.data());
        ASSERT_TRUE(actual == expected) << "item " << copy.item << " sizes " << to_string(copy.sizes) << " src "
                                        << to_string(copy.src_strides) << " dst " << to_string(copy.dst_strides);
    }

    std::mt19937_64 random_{1};
};

TEST_F(CopyEngineTest, RandomShapesEqualTheByteLoop) {
    for (int i = 0; i < 4000; ++i) {
        ASSERT_NO_FATAL_FAILURE(check(random_copy(20, 5, 5, 40)));
    }
}

TEST_F(CopyEngineTest, EveryItemSizeUpToThreeHundred) {
    for (std::int64_t item = 1; item <= 300; ++item) {
        for (int i = 0; i < 3; ++i) {
            StridedCopy copy = random_copy(1, 4, 3, 10);
            copy.item = item;
            copy.src_strides = strides(copy.sizes, item, 30);
            copy.dst_strides = strides(copy.sizes, item, 30);
            ASSERT_NO_FATAL_FAILURE(check(copy));
        }
    }
}

TEST_F(CopyEngineTest, TransposesOfAllItemSizes) {
    for (const std::int64_t item : {1, 2, 3, 4, 8, 12, 16, 17}) {
        for (const auto& [rows, columns] :
             {std::pair<std::int64_t, std::int64_t>{1, 1}, {64, 64}, {65, 31}, {7, 200}, {130, 129}}) {
            // [rows, columns] in the source, transposed in the destination; also inside a batch and with gaps.
            const std::int64_t pitch = columns * item + below(3) * item;
            ASSERT_NO_FATAL_FAILURE(
                check({3, 5, item, Dims{rows, columns}, Dims{pitch, item}, Dims{item, rows * item}}));
            ASSERT_NO_FATAL_FAILURE(check({3, 5, item, Dims{2, rows, columns}, Dims{pitch * rows, pitch, item},
                                           Dims{rows * columns * item, item, rows * item}}));
            ASSERT_NO_FATAL_FAILURE(check({0, 1, item, Dims{rows, 2, columns}, Dims{pitch, pitch * rows, item},
                                           Dims{item, rows * item, rows * 2 * item}}));
        }
    }
}

TEST_F(CopyEngineTest, LongRunsOfLargeTotalsAtEveryAlignment) {
    // Enough bytes for the streaming stores; every misalignment of either side and lengths around whole lines.
    for (int i = 0; i < 66; i += 3) {
        const std::int64_t item = 1000 + below(200);
        const std::int64_t count = (std::int64_t{1} << 20) / item + 1 + below(50);
        const StridedCopy copy{i, below(64), item, Dims{count}, Dims{item + 1 + below(100)}, Dims{item + below(70)}};
        ASSERT_NO_FATAL_FAILURE(check(copy));
    }
    ASSERT_NO_FATAL_FAILURE(check({0, 64, 4096, Dims{8, 64}, Dims{70 * 4096, 4096}, Dims{4096, 8 * 4096}}));
    ASSERT_NO_FATAL_FAILURE(
        check({1, 2, 300, Dims{9, 5, 100}, Dims{500 * 301, 301, 5 * 301}, Dims{500 * 310, 100 * 310, 310}}));
    ASSERT_NO_FATAL_FAILURE(check({5, 9, std::int64_t{3} << 20, Dims{}, Dims{}, Dims{}}));
    ASSERT_NO_FATAL_FAILURE(check({0, 0, 4096, Dims{300}, Dims{0}, Dims{4096}}));
}

TEST_F(CopyEngineTest, StreamingWithAndWithoutAvx2) {
    for (const bool avx2 : {false, has_avx2()}) {
        for (int i = 0; i < 300; ++i) {
            kernels::Box box;
            box.item = static_cast<std::size_t>(1 + below(700));
            box.rows = 1 + below(3);
            box.columns = 1 + below(6);
            box.src_column = static_cast<std::int64_t>(box.item) + below(70);
            box.dst_column = static_cast<std::int64_t>(box.item) + below(70);
            box.src_row = box.columns * box.src_column + below(70);
            box.dst_row = box.columns * box.dst_column + below(70);
            const StridedCopy copy{below(64),
                                   below(64),
                                   static_cast<std::int64_t>(box.item),
                                   Dims{box.rows, box.columns},
                                   Dims{box.src_row, box.src_column},
                                   Dims{box.dst_row, box.dst_column}};
            const Bytes src = random_bytes(random_, extent(copy, copy.src_offset, copy.src_strides, copy.item));
            Bytes expected(extent(copy, copy.dst_offset, copy.dst_strides, copy.item), kPoison);
            Bytes actual = expected;
            naive_copy(copy, src.data(), expected.data());
            kernels::streaming_copy_box(avx2)(box, src.data() + copy.src_offset, actual.data() + copy.dst_offset);
            ASSERT_TRUE(actual == expected) << "AVX2 " << avx2 << ", item " << box.item;
        }
    }
}

TEST_F(CopyEngineTest, NothingIsTouchedByAnEmptyCopy) {
    std::byte byte{7};
    strided_copy({1 << 20, 1 << 20, 4, Dims{5, 0, 3}, Dims{4, 4, 4}, Dims{4, 4, 4}}, nullptr, nullptr);
    strided_copy({0, 0, 1, Dims{0}, Dims{1}, Dims{1}}, &byte, &byte);
    converting_copy({0, 0, 4, Dims{0}, Dims{4}, Dims{2}}, DType::kF32, DType::kBF16, nullptr, nullptr);
    EXPECT_EQ(byte, std::byte{7});
    ChunkHash hash;
    hash.update_source({0, 0, 2, Dims{3, 0}, Dims{2, 2}, Dims{2, 2}}, nullptr);
    hash.update_destination({0, 0, 1, Dims{0}, Dims{1}, Dims{1}}, nullptr);
    EXPECT_EQ(hash.digest(), ChunkHash().digest());
}

double decode(DType dtype, const std::byte* bytes) {
    double d = 0;
    float f = 0;
    std::uint16_t h = 0;
    switch (dtype) {
        case DType::kF64:
            std::memcpy(&d, bytes, 8);
            return d;
        case DType::kF32:
            std::memcpy(&f, bytes, 4);
            return f;
        default:
            std::memcpy(&h, bytes, 2);
            return dtype == DType::kBF16 ? f32_from_bf16(h) : f32_from_f16(h);
    }
}

void encode(DType dtype, double value, std::byte* bytes) {
    const auto f = static_cast<float>(value);
    const std::uint16_t h = dtype == DType::kBF16 ? bf16_from_f64(value) : f16_from_f64(value);
    switch (dtype) {
        case DType::kF64:
            std::memcpy(bytes, &value, 8);
            break;
        case DType::kF32:
            std::memcpy(bytes, &f, 4);
            break;
        default:
            std::memcpy(bytes, &h, 2);
    }
}

TEST_F(CopyEngineTest, ConversionsOfRandomBitsInRandomShapes) {
    const DType types[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
    for (const DType from : types) {
        for (const DType to : types) {
            ASSERT_TRUE(can_convert(from, to));
            for (int i = 0; i < 150; ++i) {
                StridedCopy copy = random_copy(1, 7, 4, 10);
                if (i == 0) {
                    copy.sizes = Dims{1000};
                }
                copy.item = size_of(from);
                copy.src_strides = i == 0 ? Dims{size_of(from)} : strides(copy.sizes, size_of(from), 9);
                copy.dst_strides = i == 0 ? Dims{size_of(to)} : strides(copy.sizes, size_of(to), 9);
                const Bytes src = random_bytes(random_, extent(copy, copy.src_offset, copy.src_strides, copy.item));
                Bytes actual(extent(copy, copy.dst_offset, copy.dst_strides, size_of(to)), kPoison);
                Bytes untouched = actual;
                converting_copy(copy, from, to, src.data(), actual.data());
                naive_items(copy, [&](std::int64_t s, std::int64_t d) {
                    const double value = decode(from, src.data() + s);
                    std::byte expected[8];
                    encode(to, value, expected);
                    if (value != value && from != to) {
                        EXPECT_NE(decode(to, actual.data() + d), decode(to, actual.data() + d));
                    } else {
                        const bool equal = std::memcmp(actual.data() + d, from == to ? src.data() + s : expected,
                                                       static_cast<std::size_t>(size_of(to))) == 0;
                        EXPECT_TRUE(equal) << to_string(from) << " to " << to_string(to) << " of " << value;
                    }
                    std::memset(actual.data() + d, static_cast<int>(kPoison), static_cast<std::size_t>(size_of(to)));
                });
                ASSERT_TRUE(actual == untouched) << "bytes between the elements changed";
            }
        }
    }
}

TEST_F(CopyEngineTest, ConversionsOfSpecialValues) {
    // Every 16-bit pattern, through the vectorised loop: it must agree with the scalar functions.
    Bytes all(2 * 65536);
    for (unsigned bits = 0; bits < 65536; ++bits) {
        const auto h = static_cast<std::uint16_t>(bits);
        std::memcpy(all.data() + std::size_t{2} * bits, &h, 2);
    }
    for (const DType from : {DType::kF16, DType::kBF16}) {
        Bytes wide(4 * 65536);
        converting_copy({0, 0, 2, Dims{65536}, Dims{2}, Dims{4}}, from, DType::kF32, all.data(), wide.data());
        Bytes back(2 * 65536);
        converting_copy({0, 0, 4, Dims{65536}, Dims{4}, Dims{2}}, DType::kF32, from, wide.data(), back.data());
        for (unsigned bits = 0; bits < 65536; ++bits) {
            const double value = decode(from, all.data() + std::size_t{2} * bits);
            const double widened = decode(DType::kF32, wide.data() + std::size_t{4} * bits);
            const double returned = decode(from, back.data() + std::size_t{2} * bits);
            ASSERT_TRUE(value == widened || (value != value && widened != widened)) << bits;
            ASSERT_TRUE(value == returned || (value != value && returned != returned)) << bits;
        }
    }
}

TEST_F(CopyEngineTest, OnlyTheFourFloatingTypesConvert) {
    int pairs = 0;
    for (int from = 0; from < kDTypeCount; ++from) {
        for (int to = 0; to < kDTypeCount; ++to) {
            pairs += can_convert(static_cast<DType>(from), static_cast<DType>(to)) ? 1 : 0;
        }
    }
    EXPECT_EQ(pairs, 16);
    EXPECT_FALSE(can_convert(DType::kF8E4M3, DType::kBF16));
    EXPECT_FALSE(can_convert(DType::kBF16, DType::kI16));
}

// As copy_engine.h defines it, segment by segment from the back.
std::uint64_t hash_of(Bytes bytes) {
    std::uint64_t sum = bytes.size();
    bytes.resize((bytes.size() + 1023) / 1024 * 1024);
    for (std::size_t i = bytes.size() / 1024; i-- > 0;) {
        sum += mix64(XXH3_64bits(bytes.data() + i * 1024, 1024) + i * 0x9E3779B97F4A7C15u);
    }
    return sum;
}

TEST_F(CopyEngineTest, AHashIsThatOfTheBytesInWalkingOrder) {
    for (int i = 0; i < 1000; ++i) {
        const StridedCopy copy = random_copy(i % 3 == 0 ? 3000 : 20, 5, 3, 40);
        const Bytes src = random_bytes(random_, extent(copy, copy.src_offset, copy.src_strides, copy.item));
        const Bytes dst = random_bytes(random_, extent(copy, copy.dst_offset, copy.dst_strides, copy.item));
        Bytes walked_src;
        Bytes walked_dst;
        naive_items(copy, [&](std::int64_t s, std::int64_t d) {
            walked_src.insert(walked_src.end(), src.begin() + s, src.begin() + s + copy.item);
            walked_dst.insert(walked_dst.end(), dst.begin() + d, dst.begin() + d + copy.item);
        });
        ChunkHash hash;
        hash.update_source(copy, src.data());
        ASSERT_EQ(hash.digest(), hash_of(walked_src)) << i;
        hash.reset();
        hash.update_destination(copy, dst.data());
        ASSERT_EQ(hash.digest(), hash_of(walked_dst)) << i;
    }
}

TEST_F(CopyEngineTest, PiecesOfAHashAddUpHoweverTheyAreCut) {
    const Bytes bytes = random_bytes(random_, 100'000);
    for (int i = 0; i < 50; ++i) {
        ChunkHash hash;
        for (std::size_t at = 0; at < bytes.size();) {
            const auto piece =
                std::min<std::size_t>(static_cast<std::size_t>(below(i % 2 == 0 ? 100 : 9000)), bytes.size() - at);
            hash.update(bytes.data() + at, piece);
            at += piece;
        }
        const ChunkHash copied = hash;
        EXPECT_EQ(copied.digest(), hash_of(bytes));
        EXPECT_EQ(hash.digest(), hash_of(bytes));
    }
    ChunkHash empty;
    empty.update(nullptr, 0);
    EXPECT_EQ(empty.digest(), 0u);
}

TEST_F(CopyEngineTest, AHashKnowsTheOrderOfSegmentsAndTheLength) {
    Bytes bytes = random_bytes(random_, 8192);
    ChunkHash hash;
    hash.update(bytes.data(), bytes.size());
    const std::uint64_t right = hash.digest();
    hash.update(bytes.data(), 0);
    EXPECT_EQ(hash.digest(), right);
    std::swap_ranges(bytes.begin(), bytes.begin() + 1024, bytes.begin() + 4096);
    EXPECT_NE(hash_of(bytes), right);
    // A zero at the end is told from no byte at the end.
    const std::byte zero{0};
    hash.update(&zero, 1);
    EXPECT_NE(hash.digest(), right);
    EXPECT_NE(hash.digest(), hash_of(Bytes(bytes.begin(), bytes.end() - 1)));
}

TEST_F(CopyEngineTest, PackedAndScatteredBytesHaveOneHash) {
    for (int i = 0; i < 300; ++i) {
        const StridedCopy copy = coalesce(random_copy(40, 6, 4, 20));
        const Bytes src = random_bytes(random_, extent(copy, copy.src_offset, copy.src_strides, copy.item));
        Bytes packed(static_cast<std::size_t>(copy.bytes()) + 8);
        Bytes dst(extent(copy, copy.dst_offset, copy.dst_strides, copy.item));
        strided_copy(packed_from_source(copy, 8), src.data(), packed.data());
        strided_copy(destination_from_packed(copy, 8), packed.data(), dst.data());
        ChunkHash owner;
        ChunkHash wire;
        ChunkHash worker;
        owner.update_source(copy, src.data());
        wire.update(packed.data() + 8, packed.size() - 8);
        worker.update_destination(copy, dst.data());
        ASSERT_EQ(owner.digest(), wire.digest());
        ASSERT_EQ(owner.digest(), worker.digest());
    }
}

}  // namespace
}  // namespace sluice

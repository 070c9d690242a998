#include "runtime/services/buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace sluice {
namespace {

TEST(BufferTest, HostMemoryIsZeroedAndPageAligned) {
    for (const std::int64_t size : {1, 4095, 4096, 4097, 3 << 20, (2 << 20) + 1}) {
        auto buffer = Buffer::allocate(size, MemoryKind::kHost);
        ASSERT_TRUE(buffer.ok());
        EXPECT_EQ(buffer->size(), static_cast<std::size_t>(size));
        EXPECT_EQ(buffer->bytes().size(), static_cast<std::size_t>(size));
        EXPECT_EQ(buffer->kind(), MemoryKind::kHost);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 4096, 0u);
        EXPECT_EQ(buffer->data()[0], std::byte{0});
        EXPECT_EQ(buffer->data()[size - 1], std::byte{0});
        std::memset(buffer->data(), 0xFF, buffer->size());
    }
}

TEST(BufferTest, NothingHasNoAddress) {
    auto buffer = Buffer::allocate(0, MemoryKind::kHost);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(buffer->data(), nullptr);
    EXPECT_EQ(buffer->size(), 0u);
}

TEST(BufferTest, WhatCannotBeHadIsAnErrorOfOneLine) {
    for (const std::int64_t size :
         {std::int64_t{1} << 60, std::numeric_limits<std::int64_t>::max(), std::int64_t{-1}}) {
        const auto buffer = Buffer::allocate(size, MemoryKind::kHost);
        ASSERT_FALSE(buffer.ok());
        EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
        EXPECT_EQ(buffer.status().message().find('\n'), std::string::npos);
    }
    EXPECT_NE(Buffer::allocate(std::int64_t{1} << 60, MemoryKind::kHost).status().message().find("1048576TiB"),
              std::string::npos);
    EXPECT_EQ(Buffer::allocate(1, MemoryKind::kCuda).status().code(), StatusCode::kUnsupported);
    EXPECT_NE(Buffer::allocate(1, MemoryKind::kPinned).status().message().find("pinned"), std::string::npos);
}

int released = 0;

TEST(BufferTest, AdoptedMemoryIsGivenBackOnce) {
    std::byte memory[16];
    released = 0;
    const auto release = [](std::byte*, std::size_t size) { released += static_cast<int>(size); };
    {
        Buffer buffer = Buffer::adopt(memory, 16, MemoryKind::kPinned, release);
        Buffer moved = std::move(buffer);
        EXPECT_EQ(moved.data(), memory);
        EXPECT_EQ(moved.kind(), MemoryKind::kPinned);
        auto other = Buffer::allocate(8, MemoryKind::kHost);
        ASSERT_TRUE(other.ok());
        *other = std::move(moved);
        EXPECT_EQ(other->data(), memory);
        EXPECT_EQ(released, 0);
    }
    EXPECT_EQ(released, 16);
}

TEST(StagingArenaTest, TheWholeFitsAndNothingMore) {
    auto arena = StagingArena::create(10'000);  // No whole number of pages.
    ASSERT_TRUE(arena.ok());
    EXPECT_EQ(arena->capacity(), 10'000);
    EXPECT_EQ(arena->bytes().size(), 10'000u);
    EXPECT_EQ(arena->try_reserve(10'001), std::nullopt);
    EXPECT_EQ(arena->try_reserve(10'000), 0);
    EXPECT_EQ(arena->try_reserve(1), std::nullopt);
    EXPECT_EQ(arena->used(), 10'000);
    arena->release(0);
    EXPECT_EQ(arena->used(), 0);
    EXPECT_EQ(arena->peak(), 10'000);
    EXPECT_EQ(arena->try_reserve(std::numeric_limits<std::int64_t>::max()), std::nullopt);
}

TEST(StagingArenaTest, NeighboursThatComeFreeMakeOnePiece) {
    auto arena = StagingArena::create(3 * 8192);
    ASSERT_TRUE(arena.ok());
    for (const auto& order : {std::vector<int>{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
        std::int64_t at[3];
        for (std::int64_t& offset : at) {
            const auto reserved = arena->try_reserve(8192);
            ASSERT_TRUE(reserved.has_value());
            offset = *reserved;
        }
        EXPECT_EQ(arena->try_reserve(1), std::nullopt);
        for (const int piece : order) {
            arena->release(at[piece]);
        }
        const auto whole = arena->try_reserve(3 * 8192);
        ASSERT_EQ(whole, 0);
        arena->release(*whole);
    }
}

TEST(StagingArenaTest, RandomReservationsNeverOverlapAndNeverLeaveAHole) {
    constexpr std::int64_t kCapacity = 200'000;
    auto arena = StagingArena::create(kCapacity);
    ASSERT_TRUE(arena.ok());
    std::mt19937_64 random(1);
    std::map<std::int64_t, std::int64_t> held;  // Offset -> size.
    std::int64_t used = 0;
    std::int64_t peak = 0;
    int refused = 0;
    for (int i = 0; i < 20'000; ++i) {
        if (held.empty() || random() % 5 < 3) {
            const auto size = static_cast<std::int64_t>(1 + random() % (random() % 4 == 0 ? 60'000 : 5'000));
            const auto offset = arena->try_reserve(size);
            if (!offset) {
                // Right only if no gap between what is held has room for its pages.
                ++refused;
                std::int64_t gap_begin = 0;
                std::int64_t largest = 0;
                for (const auto& [at, held_size] : held) {
                    largest = std::max(largest, at - gap_begin);
                    gap_begin = at + (held_size + 4095) / 4096 * 4096;
                }
                ASSERT_LT(largest, (size + 4095) / 4096 * 4096);
                ASSERT_LT(kCapacity - gap_begin, size);
                continue;
            }
            ASSERT_EQ(*offset % 4096, 0);
            ASSERT_LE(*offset + size, kCapacity);
            const auto [place, fresh] = held.emplace(*offset, size);
            ASSERT_TRUE(fresh);
            ASSERT_TRUE(place == held.begin() || std::prev(place)->first + std::prev(place)->second <= *offset);
            ASSERT_TRUE(std::next(place) == held.end() || *offset + size <= std::next(place)->first);
            std::memset(arena->data() + *offset, 1, static_cast<std::size_t>(size));
            used += size;
            peak = std::max(peak, used);
        } else {
            const auto victim = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
            arena->release(victim->first);
            used -= victim->second;
            held.erase(victim);
        }
        ASSERT_EQ(arena->used(), used);
    }
    EXPECT_GT(refused, 100);
    EXPECT_EQ(arena->peak(), peak);
    EXPECT_LE(peak, kCapacity);
    for (const auto& [offset, size] : held) {
        arena->release(offset);
    }
    EXPECT_EQ(arena->try_reserve(kCapacity), 0);
}

TEST(StagingArenaTest, AnEmptyArenaReservesNothing) {
    auto arena = StagingArena::create(0);
    ASSERT_TRUE(arena.ok());
    EXPECT_EQ(arena->try_reserve(1), std::nullopt);
    EXPECT_FALSE(StagingArena::create(std::int64_t{1} << 60).ok());
}

}  // namespace
}  // namespace sluice

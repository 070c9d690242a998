// Programs are made by host code, and carried out here by host code too: what kernels do with them is the arithmetic of
// copy_descriptor.h, whatever machine it runs on.
#include "runtime/cuda/copy_program.h"

#include "tests/cuda/random_copies.h"

#include <gtest/gtest.h>

#include <cstring>

namespace sluice {
namespace {

// Carries out a program without conversions byte by byte, checking what kernels rely on.
void carry_out(const CopyProgram& program, std::byte* wire) {
    std::int64_t at = 0;
    for (const CopyDescriptor& d : program.descriptors) {
        ASSERT_EQ(d.wire_begin, at);
        at = d.wire_end();
        ASSERT_EQ(d.wire_begin % d.unit, 0);
        for (std::uint32_t i = 0; i < d.wire_bytes; ++i) {
            const CopyDescriptor::Place place = d.place(i);
            if (i % d.unit == 0) {
                ASSERT_EQ(place.source % d.unit, 0);
                ASSERT_EQ(place.target % d.unit, 0);
                ASSERT_LE(place.in_run + d.unit, d.run.divisor);
            }
            const auto base = [&](CopyBase of) {
                return of == CopyBase::kWire ? reinterpret_cast<std::intptr_t>(wire) : std::intptr_t{0};
            };
            *reinterpret_cast<std::byte*>(base(d.target_base) + place.target) =
                *reinterpret_cast<const std::byte*>(base(d.source_base) + place.source);
        }
    }
    ASSERT_EQ(at, program.wire_bytes);
}

void check_tiles(const CopyProgram& program) {
    const std::int64_t tiles = (program.wire_bytes + CopyProgram::kTileBytes - 1) / CopyProgram::kTileBytes;
    ASSERT_EQ(static_cast<std::int64_t>(program.tiles.size()), tiles + 1);
    for (std::size_t tile = 0; tile + 1 < program.tiles.size(); ++tile) {
        const std::int64_t begin = static_cast<std::int64_t>(tile) * CopyProgram::kTileBytes;
        const CopyDescriptor& first = program.descriptors[program.tiles[tile]];
        ASSERT_LE(first.wire_begin, begin);
        ASSERT_GT(first.wire_end(), begin);
        ASSERT_LE(program.tiles[tile], program.tiles[tile + 1]);
    }
}

TEST(Divider, IsExactBelowTwoToThe31) {
    std::mt19937_64 random(2);
    for (const std::uint32_t divisor :
         {1u, 2u, 3u, 5u, 7u, 64u, 641u, 768u, 65535u, 65537u, (1u << 30) - 1, 1u << 30, (1u << 30) + 1, 0x7FFFFFFFu}) {
        const Divider divider = make_divider(divisor);
        for (int i = 0; i < 2000; ++i) {
            const auto n = static_cast<std::uint32_t>(random() >> (33 + random() % 30));
            ASSERT_EQ(divider.quotient(n), n / divisor) << n << " / " << divisor;
        }
        for (std::uint64_t multiple = divisor; multiple < (1u << 31);
             multiple += multiple / 3 / divisor * divisor + divisor) {
            ASSERT_EQ(divider.quotient(static_cast<std::uint32_t>(multiple)), multiple / divisor);
            ASSERT_EQ(divider.quotient(static_cast<std::uint32_t>(multiple - 1)), multiple / divisor - 1);
        }
    }
}

TEST(CopyProgram, PacksAndScattersAsTheHostEngineDoes) {
    test::RandomCopies random(3);
    for (int i = 0; i < 300; ++i) {
        const test::CopySet set = random.make(1 + i % 7, i % 3 == 0 ? 16 : 1);
        std::vector<std::byte> wire(static_cast<std::size_t>(set.wire_bytes) + 16, std::byte{0xA5});
        const auto pack = compile_program(set.pack());
        ASSERT_TRUE(pack.ok());
        check_tiles(*pack);
        ASSERT_NO_FATAL_FAILURE(carry_out(*pack, wire.data()));
        ASSERT_EQ(wire, set.packed_by_host()) << i;
        std::vector<std::byte> target(set.target_bytes, std::byte{0x5A});
        const auto scatter = compile_program(set.scatter(target.data()));
        ASSERT_TRUE(scatter.ok());
        ASSERT_NO_FATAL_FAILURE(carry_out(*scatter, wire.data()));
        ASSERT_EQ(target, set.scattered_by_host()) << i;
        std::vector<std::byte> at_once(set.target_bytes, std::byte{0x5A});
        const auto whole = compile_program(set.source_to(at_once.data()));
        ASSERT_TRUE(whole.ok());
        ASSERT_NO_FATAL_FAILURE(carry_out(*whole, nullptr));
        ASSERT_EQ(at_once, set.scattered_by_host()) << i;
    }
}

TEST(CopyProgram, CutsWhatADescriptorDoesNotHold) {
    // Six dimensions of which no two merge, and a run of more than 2^31 bytes: only looked at, not carried out.
    ProgramCopy deep;
    deep.copy = {0, 0, 2, Dims{2, 3, 2, 3, 2, 3}, Dims{4000, 1000, 300, 90, 30, 4}, Dims{900, 300, 120, 40, 15, 4}};
    ProgramCopy large;
    large.copy.item = (std::int64_t{5} << 30) + 6;
    large.copy.src_offset = 32;
    const ProgramCopy both[] = {deep, large};
    const auto program = compile_program(both);
    ASSERT_TRUE(program.ok());
    check_tiles(*program);
    EXPECT_EQ(program->wire_bytes, deep.copy.bytes() + large.copy.bytes());
    EXPECT_EQ(program->descriptors.size(), 6u + 6u);
    EXPECT_EQ(program->descriptors.back().source, 32 + (std::int64_t{5} << 30));
    EXPECT_EQ(program->descriptors.back().wire_bytes, 6u);
}

TEST(CopyProgram, NothingToCopyIsAProgram) {
    ProgramCopy empty;
    empty.copy = {0, 0, 4, Dims{3, 0}, Dims{8, 4}, Dims{8, 4}};
    const auto program = compile_program({&empty, 1});
    ASSERT_TRUE(program.ok());
    EXPECT_TRUE(program->descriptors.empty());
    EXPECT_EQ(program->tiles.size(), 1u);
}

}  // namespace
}  // namespace sluice

#include "runtime/services/device.h"

#include "runtime/services/copy_engine.h"
#include "tests/cuda/gpu.h"
#include "tests/cuda/random_copies.h"

#include <cuda_runtime_api.h>

#include <thread>

namespace sluice {
namespace {

using Bytes = std::vector<std::byte>;

DeviceBase to_device_base(CopyBase base) {
    return base == CopyBase::kWire       ? DeviceBase::kWire
           : base == CopyBase::kGathered ? DeviceBase::kGathered
                                         : DeviceBase::kAddress;
}

std::vector<DeviceCopy> device_copies(const std::vector<ProgramCopy>& copies) {
    std::vector<DeviceCopy> out;
    for (const ProgramCopy& c : copies) {
        out.push_back(
            {c.copy, to_device_base(c.source_base), to_device_base(c.target_base), c.source, c.target, c.from, c.to});
    }
    return out;
}

std::uint64_t host_hash(const std::byte* bytes, std::int64_t size) {
    ChunkHash hash;
    hash.update(bytes, static_cast<std::size_t>(size));
    return hash.digest();
}

class DeviceTest : public test::Gpu {
protected:
    std::unique_ptr<DeviceProgram> compile(const std::vector<ProgramCopy>& copies) {
        auto program = device->compile(device_copies(copies));
        EXPECT_TRUE(program.ok()) << program.status().message();
        return std::move(*program);
    }

    // Packs, scatters and copies at once, with checksums, and compares everything with the host engine.
    void check(const test::CopySet& set, bool converts) {
        const Bytes wire_expected = set.packed_by_host();
        const Bytes target_expected = set.scattered_by_host();
        const std::uint64_t digest_expected = host_hash(wire_expected.data(), set.wire_bytes);
        const Buffer source = to_device(set.source);
        const Buffer wire = to_device(Bytes(wire_expected.size(), std::byte{0xA5}));
        const Buffer target = to_device(Bytes(set.target_bytes, std::byte{0x5A}));
        const Device::Bases bases{wire.data(), nullptr};

        const auto pack = compile(set.pack(source.data()));
        ASSERT_EQ(pack->wire_bytes(), set.wire_bytes);
        std::uint64_t digest = 0;
        ASSERT_TRUE(device->run(*pack, bases, 0, &digest).ok());
        ASSERT_EQ(to_host(wire.data(), wire_expected.size()), wire_expected);
        ASSERT_EQ(digest, digest_expected);

        const auto scatter = compile(set.scatter(target.data()));
        digest = 0;
        ASSERT_TRUE(device->run(*scatter, bases, 1, &digest).ok());
        ASSERT_EQ(to_host(target.data(), set.target_bytes), target_expected);
        ASSERT_EQ(digest, digest_expected);
        if (converts) {
            return;
        }
        const auto source_digest = device->hash(*pack, bases, Device::Side::kSource, 0);
        const auto target_digest = device->hash(*scatter, bases, Device::Side::kTarget, 0);
        ASSERT_TRUE(source_digest.ok() && target_digest.ok());
        ASSERT_EQ(*source_digest, digest_expected);
        ASSERT_EQ(*target_digest, digest_expected);

        ASSERT_TRUE(device->fill(target.data(), std::byte{0x5A}, set.target_bytes, 0).ok());
        const auto whole = compile(set.source_to(target.data(), source.data()));
        ASSERT_TRUE(device->run(*whole, {}, 0, nullptr).ok());
        ASSERT_EQ(to_host(target.data(), set.target_bytes), target_expected);
    }
};

TEST_F(DeviceTest, CopiesOfEveryAlignmentAreTheHostEnginesToTheByte) {
    test::RandomCopies random(5);
    for (const std::int64_t grain : {1, 2, 3, 4, 8, 16, 32}) {
        for (int i = 0; i < 12; ++i) {
            ASSERT_NO_FATAL_FAILURE(check(random.make(1 + i * i, grain), false)) << grain << " " << i;
        }
    }
}

TEST_F(DeviceTest, ConversionsAreTheHostEnginesToTheBit) {
    test::RandomCopies random(6);
    const DType types[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
    for (const DType from : types) {
        for (const DType to : types) {
            for (int i = 0; from != to && i < 6; ++i) {
                ASSERT_NO_FATAL_FAILURE(check(random.make(1 + i * 3, i % 2 == 0 ? 16 : 1, from, to), true))
                    << to_string(from) << " to " << to_string(to);
            }
        }
    }
}

// Every value of 16 bits, widened; and f32 values around every rounding border, narrowed.
TEST_F(DeviceTest, EveryValueConvertsAsOnTheHost) {
    for (const DType narrow : {DType::kBF16, DType::kF16}) {
        Bytes values(2 * 65536);
        for (std::uint32_t i = 0; i < 65536; ++i) {
            const auto bits = static_cast<std::uint16_t>(i);
            std::memcpy(&values[2 * i], &bits, 2);
        }
        Bytes wide(4 * 65536);
        const StridedCopy widen{0, 0, 2, Dims{65536}, Dims{2}, Dims{4}};
        converting_copy(widen, narrow, DType::kF32, values.data(), wide.data());
        const Buffer source = to_device(values);
        const Buffer target = to_device(Bytes(wide.size()));
        const DeviceCopy copy{widen,  DeviceBase::kAddress, DeviceBase::kAddress, source.data(), target.data(),
                              narrow, DType::kF32};
        auto program = device->compile({&copy, 1});
        ASSERT_TRUE(program.ok());
        ASSERT_TRUE(device->run(**program, {}, 0, nullptr).ok());
        ASSERT_EQ(to_host(target.data(), wide.size()), wide);

        // Halves between neighbours, and the values next to them.
        std::vector<std::uint32_t> near;
        for (std::size_t i = 0; i < wide.size(); i += 4) {
            std::uint32_t bits = 0;
            std::memcpy(&bits, &wide[i], 4);
            for (const std::uint32_t low : {0u, 1u, 0xFFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
                near.push_back((bits & 0xFFFF0000u) | low);
            }
        }
        const auto count = static_cast<std::int64_t>(near.size());
        Bytes near_bytes(near.size() * 4);
        std::memcpy(near_bytes.data(), near.data(), near_bytes.size());
        const StridedCopy narrowing{0, 0, 4, Dims{count}, Dims{4}, Dims{2}};
        Bytes expected(near.size() * 2);
        converting_copy(narrowing, DType::kF32, narrow, near_bytes.data(), expected.data());
        const Buffer near_source = to_device(near_bytes);
        const Buffer narrowed = to_device(Bytes(expected.size()));
        const DeviceCopy back{
            narrowing, DeviceBase::kAddress, DeviceBase::kAddress, near_source.data(), narrowed.data(), DType::kF32,
            narrow};
        program = device->compile({&back, 1});
        ASSERT_TRUE(program.ok());
        ASSERT_TRUE(device->run(**program, {}, 0, nullptr).ok());
        ASSERT_EQ(to_host(narrowed.data(), expected.size()), expected);
    }
}

TEST_F(DeviceTest, ManyPiecesInOneLaunch) {
    // 100,000 pieces of 1 to 17 rows of 16 to 128 bytes, one after the other on one side and apart on the other.
    test::CopySet set;
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < 100'000; ++i) {
        test::CopySet::One one;
        const std::int64_t rows = 1 + i % 17;
        one.copy = {at, at / 2, 16 * (1 + i % 8), Dims{rows}, Dims{256}, Dims{128}};
        one.wire_offset = set.wire_bytes;
        set.wire_bytes += one.wire_bytes();
        at += rows * 256;
        set.copies.push_back(one);
    }
    set.source.resize(static_cast<std::size_t>(at));
    for (std::size_t i = 0; i < set.source.size(); ++i) {
        set.source[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
    }
    set.target_bytes = static_cast<std::size_t>(at / 2);
    check(set, false);
}

// From thousands of descriptors in a tile to tiles of one, in sizes that fall on the ends of tiles, of what a warp moves, and elsewhere; and
// with some that are no plain ones between them.
TEST_F(DeviceTest, TilesOfAnyNumberOfDescriptors) {
    for (const std::int64_t size :
         {16, 240, 256, 272, 512, 1008, 1024, 1536, 8192, 16400, 32752, 32768, 32784, 100000}) {
        for (const bool mixed : {false, true}) {
            test::CopySet set;
            std::int64_t at = 0;
            for (std::int64_t i = 0; set.wire_bytes < (300 << 10); ++i) {
                test::CopySet::One one;
                const std::int64_t odd = mixed && i % 5 == 3 ? 8 : 0;  // aligned to 8 only
                one.copy = {at + odd, at + odd, size, Dims{}, Dims{}, Dims{}};
                one.wire_offset = set.wire_bytes;
                set.wire_bytes += one.wire_bytes();
                at += size + 32;
                set.copies.push_back(one);
            }
            set.source.resize(static_cast<std::size_t>(at));
            for (std::size_t i = 0; i < set.source.size(); ++i) {
                set.source[i] = static_cast<std::byte>((i * 2654435761u) >> 11);
            }
            set.target_bytes = static_cast<std::size_t>(at);
            ASSERT_NO_FATAL_FAILURE(check(set, false)) << size << " " << mixed;
        }
    }
}

TEST_F(DeviceTest, LanesRunAtTheSameTime) {
    test::RandomCopies random(7);
    const test::CopySet set = random.make(200, 16);
    const Buffer source = to_device(set.source);
    const Bytes expected = set.packed_by_host();
    const std::uint64_t digest_expected = host_hash(expected.data(), set.wire_bytes);
    const auto pack = compile(set.pack(source.data()));
    std::vector<std::thread> threads;
    for (int lane = 0; lane < device->lanes(); ++lane) {
        threads.emplace_back([&, lane] {
            auto wire = device->allocate(static_cast<std::int64_t>(expected.size()));
            ASSERT_TRUE(wire.ok());
            for (int i = 0; i < 50; ++i) {
                std::uint64_t digest = 0;
                ASSERT_TRUE(device->run(*pack, {wire->data(), nullptr}, lane, &digest).ok());
                ASSERT_EQ(digest, digest_expected);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

TEST_F(DeviceTest, PinnedMemoryIsReadAndWrittenByKernels) {
    test::RandomCopies random(8);
    const test::CopySet set = random.make(20, 16);
    const Buffer source = to_device(set.source);
    const Bytes expected = set.packed_by_host();
    auto wire = device->allocate_pinned(static_cast<std::int64_t>(expected.size()));
    ASSERT_TRUE(wire.ok());
    EXPECT_EQ(wire->kind(), MemoryKind::kPinned);
    std::memset(wire->data(), 0xA5, wire->size());
    const auto pack = compile(set.pack(source.data()));
    ASSERT_TRUE(device->run(*pack, {wire->data(), nullptr}, 0, nullptr).ok());
    EXPECT_EQ(Bytes(wire->data(), wire->data() + wire->size()), expected);
}

// CUDA opens no handle in the process that made it.
TEST_F(DeviceTest, MapsItsOwnMemoryWhereItIs) {
    const Bytes bytes(5000, std::byte{0x5C});
    const Buffer memory = to_device(bytes);
    const auto handle = device->share(memory.data() + 256);
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    const auto mapped = device->map(*handle, 4000);
    ASSERT_TRUE(mapped.ok()) << mapped.status().message();
    EXPECT_EQ(mapped->data(), memory.data() + 256);
}

TEST(CudaDeviceOpening, AMissingDeviceIsRefusedInOneLine) {
    const auto device = open_cuda_device(1000, 1);
    ASSERT_FALSE(device.ok());
    EXPECT_FALSE(device.status().message().empty());
    EXPECT_EQ(device.status().message().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace sluice

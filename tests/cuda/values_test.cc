#include "runtime/cuda/device_program.h"
#include "runtime/cuda/value_kernels.h"
#include "runtime/services/tensor_values.h"
#include "tests/cuda/gpu.h"

namespace sluice {
namespace {

using Bytes = std::vector<std::byte>;

class ValuesTest : public test::Gpu {};

TEST_F(ValuesTest, AreThoseOfTheHostAndOneWrongByteIsFound) {
    auto stream = CudaStream::create();
    ASSERT_TRUE(stream.ok());
    UploadArena arena;
    for (int type = 0; type < kDTypeCount; ++type) {
        const auto dtype = static_cast<DType>(type);
        const std::int64_t item = size_of(dtype);
        // Rows of 40 elements out of 100 of a tensor, the first at element 7, then a tensor of 1000 elements, aligned.
        constexpr std::int64_t kRows = 50;
        const std::int64_t first_bytes = kRows * 40 * item;
        const Buffer memory = to_device(Bytes(static_cast<std::size_t>(first_bytes + 1008 * item), std::byte{0x5A}));
        ProgramCopy rows;
        rows.copy = {7 * item, 0, 40 * item, Dims{kRows}, Dims{100 * item}, Dims{40 * item}};
        rows.target = memory.data();
        ProgramCopy whole;
        whole.copy.item = 1000 * item;
        whole.tag = 1;
        whole.copy.dst_offset = first_bytes;
        whole.target = memory.data();
        const ProgramCopy copies[] = {rows, whole};
        const auto program = compile_program(copies);
        ASSERT_TRUE(program.ok());
        const ValueTensor tensors[] = {{name_hash("a"), dtype}, {name_hash("b"), dtype}};
        ASSERT_EQ(program->descriptors.size(), 2u);
        const auto view = upload_program(*program, arena, *stream);
        const auto table = arena.upload(tensors, sizeof tensors, *stream);
        const std::uint64_t zero = 0;
        const auto counter = arena.upload(&zero, sizeof zero, *stream);
        ASSERT_TRUE(view.ok() && table.ok() && counter.ok());
        const auto* on_device = reinterpret_cast<const ValueTensor*>(*table);
        auto* different = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(*counter));
        for (const std::int64_t version : {1, 2, 3}) {
            Bytes expected(static_cast<std::size_t>(first_bytes + 1008 * item), std::byte{0x5A});
            for (std::int64_t row = 0; row < kRows; ++row) {
                fill_generated(name_hash("a"), dtype, 7 + row * 100, 40, version, expected.data() + row * 40 * item);
            }
            fill_generated(name_hash("b"), dtype, 0, 1000, version, expected.data() + first_bytes);
            ASSERT_TRUE(launch_fill_values(*view, on_device, version, stream->handle()).ok());
            ASSERT_TRUE(stream->wait().ok());
            ASSERT_EQ(to_host(memory.data(), expected.size()), expected) << to_string(dtype) << " " << version;

            const auto count = [&]() -> std::uint64_t {
                EXPECT_TRUE(device->fill(reinterpret_cast<std::byte*>(different), std::byte{0}, 8, 0).ok());
                EXPECT_TRUE(launch_check_values(*view, on_device, version, different, stream->handle()).ok());
                EXPECT_TRUE(stream->wait().ok());
                const Bytes bytes = to_host(reinterpret_cast<const std::byte*>(different), 8);
                std::uint64_t found = 0;
                std::memcpy(&found, bytes.data(), 8);
                return found;
            };
            EXPECT_EQ(count(), 0u);
            for (const std::int64_t at : {std::int64_t{0}, 41 * item, first_bytes + 999 * item}) {
                const std::byte wrong = expected[static_cast<std::size_t>(at)] ^ std::byte{1};
                ASSERT_TRUE(device->copy(memory.data() + at, &wrong, 1, 0).ok());
                EXPECT_EQ(count(), 1u) << to_string(dtype) << " at " << at;
                ASSERT_TRUE(device->copy(memory.data() + at, &expected[static_cast<std::size_t>(at)], 1, 0).ok());
            }
        }
    }
}

}  // namespace
}  // namespace sluice

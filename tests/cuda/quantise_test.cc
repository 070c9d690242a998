#include "runtime/base/float_bits.h"
#include "runtime/cuda/block_quantise.h"
#include "runtime/cuda/device_memory.h"
#include "tests/cuda/gpu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace sluice {
namespace {

using Bytes = std::vector<std::byte>;

class QuantiseTest : public test::Gpu {
protected:
    // On the GPU what the host makes of it, to the bit; a NaN scale is any NaN.
    void check(std::int64_t matrices, std::int64_t rows, std::int64_t columns, DType from, const Bytes& source) {
        BlockQuantisation job;
        job.matrices = matrices;
        job.rows = rows;
        job.columns = columns;
        job.from = from;
        job.source = source.data();
        Bytes values(static_cast<std::size_t>(matrices * rows * columns));
        std::vector<float> scales(static_cast<std::size_t>(matrices * job.block_rows() * job.block_columns()));
        job.values = values.data();
        job.scales = scales.data();
        quantise_blocks(job);

        const Buffer on_device = to_device(source);
        const Buffer device_values = to_device(Bytes(values.size(), std::byte{0xEE}));
        const Buffer device_scales = to_device(Bytes(scales.size() * sizeof(float), std::byte{0xEE}));
        job.source = on_device.data();
        job.values = device_values.data();
        job.scales = reinterpret_cast<float*>(device_scales.data());
        auto stream = CudaStream::create();
        ASSERT_TRUE(stream.ok());
        ASSERT_TRUE(launch_quantise(job, stream->handle()).ok());
        ASSERT_TRUE(stream->wait().ok());
        const Bytes found = to_host(device_values.data(), values.size());
        const Bytes scale_bytes = to_host(device_scales.data(), scales.size() * sizeof(float));
        for (std::size_t i = 0; i < scales.size(); ++i) {
            float scale = 0;
            std::memcpy(&scale, &scale_bytes[i * sizeof(float)], sizeof scale);
            ASSERT_TRUE(std::bit_cast<std::uint32_t>(scale) == std::bit_cast<std::uint32_t>(scales[i]) ||
                        (scale != scale && scales[i] != scales[i]))
                << "scale " << i << " is " << scale << ", not " << scales[i];
        }
        for (std::size_t i = 0; i < values.size(); ++i) {
            ASSERT_EQ(found[i], values[i]) << "value " << i;
        }
    }

    Bytes random_values(std::int64_t count, DType type, double spread) {
        Bytes out(static_cast<std::size_t>(count * size_of(type)));
        std::normal_distribution<double> normal;
        std::uniform_real_distribution<double> exponent(-spread, spread);
        for (std::int64_t i = 0; i < count; ++i) {
            const auto value = static_cast<float>(normal(random_) * std::exp2(exponent(random_)));
            store(out, i, type, value);
        }
        return out;
    }
    static void store(Bytes& out, std::int64_t i, DType type, float value) {
        const auto at = static_cast<std::size_t>(i * size_of(type));
        if (type == DType::kF32) {
            std::memcpy(&out[at], &value, sizeof value);
        } else {
            const std::uint16_t bits = type == DType::kBF16 ? bf16_from_f32(value) : f16_from_f32(value);
            std::memcpy(&out[at], &bits, sizeof bits);
        }
    }

    std::mt19937_64 random_{9};
};

TEST_F(QuantiseTest, RandomMatricesOfAllTypesAndShapes) {
    struct Shape {
        std::int64_t matrices, rows, columns;
    };
    for (const DType type : {DType::kBF16, DType::kF16, DType::kF32}) {
        for (const Shape shape : {Shape{1, 128, 128}, Shape{3, 256, 384}, Shape{2, 200, 272}, Shape{1, 1, 1},
                                  Shape{1, 130, 7}, Shape{5, 128, 100}}) {
            for (const double spread : {0.0, 4.0, 14.0}) {
                const std::int64_t count = shape.matrices * shape.rows * shape.columns;
                ASSERT_NO_FATAL_FAILURE(
                    check(shape.matrices, shape.rows, shape.columns, type, random_values(count, type, spread)))
                    << to_string(type) << " " << shape.rows << " x " << shape.columns;
            }
        }
    }
}

// All bit patterns of the 16-bit types, in blocks with scales of every size.
TEST_F(QuantiseTest, EveryValueUnderManyScales) {
    for (const DType type : {DType::kBF16, DType::kF16}) {
        Bytes source(2 * 65536 * 16);
        for (std::uint32_t i = 0; i < 65536 * 16; ++i) {
            const auto bits = static_cast<std::uint16_t>(i % 65536);
            std::memcpy(&source[2 * i], &bits, 2);
        }
        // Rows of rising magnitude: each block has its own range of exponents.
        ASSERT_NO_FATAL_FAILURE(check(1, 65536 * 16 / 128, 128, type, source));
        std::vector<std::uint16_t> shuffled(65536);
        for (std::uint32_t i = 0; i < 65536; ++i) {
            shuffled[i] = static_cast<std::uint16_t>(i & 0x7F7F);  // finite, for bf16
        }
        std::shuffle(shuffled.begin(), shuffled.end(), random_);
        Bytes mixed(2 * 65536);
        std::memcpy(mixed.data(), shuffled.data(), mixed.size());
        ASSERT_NO_FATAL_FAILURE(check(1, 512, 128, type, mixed));
    }
}

TEST_F(QuantiseTest, TiesHugeTinyNaNAndInfinity) {
    const float infinity = std::numeric_limits<float>::infinity();
    for (const DType type : {DType::kBF16, DType::kF16, DType::kF32}) {
        Bytes source = random_values(128 * 1024, type, 0);
        // Block 0: the largest value 448, so that the scale is 1 and halves are ties.
        for (std::int64_t i = 0; i < 128; ++i) {
            store(source, i, type, static_cast<float>(i) * 0.0625F);
            store(source, 1024 + i, type, 17.0F + static_cast<float>(i));
        }
        store(source, 5, type, -448.0F);
        store(source, 128, type, 1e30F);
        store(source, 256, type, 3.3e38F);
        store(source, 257, type, -1e-40F);
        store(source, 384, type, std::numeric_limits<float>::quiet_NaN());
        store(source, 512, type, -infinity);
        for (std::int64_t i = 0; i < 128; ++i) {
            for (std::int64_t row = 0; row < 128; ++row) {
                store(source, row * 1024 + 640 + i, type, -1e-41F * static_cast<float>(i));
                store(source, row * 1024 + 768 + i, type, -0.0F);
            }
        }
        ASSERT_NO_FATAL_FAILURE(check(1, 128, 1024, type, source)) << to_string(type);
    }
}

TEST_F(QuantiseTest, RandomBitsOfF32) {
    Bytes source(4 * 1024 * 1024);
    for (int turn = 0; turn < 4; ++turn) {
        for (std::size_t i = 0; i < source.size(); i += 4) {
            auto bits = static_cast<std::uint32_t>(random_());
            if (turn > 0) {  // magnitudes within a block that a quotient can have
                bits = (bits & 0x83FFFFFFu) | static_cast<std::uint32_t>(8 + 16 * turn) << 24;
            }
            std::memcpy(&source[i], &bits, 4);
        }
        ASSERT_NO_FATAL_FAILURE(check(4, 512, 512, DType::kF32, source)) << turn;
    }
}

}  // namespace
}  // namespace sluice

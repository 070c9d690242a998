// The input's bytes are the choices of a chain of view operations: shapes, dtypes, operations and their arguments.
#include "tests/fuzz/require.h"
#include "tests/planner/recording_chain.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::size_t at = 0;
    // One byte for a small choice, two for a larger one; 0 when the input is used up.
    const auto draw = [&](std::uint64_t below) {
        std::uint64_t value = 0;
        for (int i = 0; i < (below <= 256 ? 1 : 2); ++i) {
            value = value << 8 | (at < size ? data[at++] : 0U);
        }
        return value % below;
    };
    sluice::test::OperationCounts counts;
    sluice::test::check_recording_chain(draw, counts);
    // No test runs here: GoogleTest has printed what differs.
    sluice::test::require(!testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed(),
                          "what records also transfers, as PyTorch would have copied it");
    return 0;
}

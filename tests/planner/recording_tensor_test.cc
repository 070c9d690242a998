#include "planner/recording_tensor.h"

#include "tests/planner/demand_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

namespace sluice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RecordingTensorTest : public testing::Test {
protected:
    RecordingTensorTest()
        : catalogue_(*Catalogue::create({{"matrix", DType::kBF16, {6, 8}, 0, {}},
                                         {"cube", DType::kBF16, {2, 3, 4}, 0, {}},
                                         {"bytes", DType::kU8, {4, 12}, 0, {}},
                                         {"f32", DType::kF32, {4}, 0, {}},
                                         {"fp8", DType::kF8E4M3, {4}, 0, {}},
                                         {"scalar", DType::kF32, {}, 0, {}},
                                         {"one", DType::kF32, {1}, 0, {}},
                                         {"empty", DType::kBF16, {0}, 0, {}},
                                         {"empty2", DType::kBF16, {2, 0}, 0, {}}},
                                        1)),
          recorder_(catalogue_) {}

    RecordingTensor tensor(const char* name) { return recorder_.tensor(name); }

    // The message with which `operation` is refused.
    static std::string refusal(const std::function<void()>& operation) {
        try {
            operation();
        } catch (const RecordingRefused& refused) {
            EXPECT_EQ(refused.status().code(), StatusCode::kPlanRefused);
            return refused.status().message();
        }
        ADD_FAILURE() << "not refused";
        return "";
    }

    const std::vector<CopyRecord>& records() const { return recorder_.demand().records; }

    Catalogue catalogue_;
    Recorder recorder_;
};

TEST_F(RecordingTensorTest, NarrowAndSelectRecordOneAffineCopy) {
    const RecordingParameter p = recorder_.add_parameter("p", DType::kBF16, {3, 4});
    p.narrow(0, 1, 2).copy_(tensor("matrix").narrow(0, 2, 2).narrow(1, 4, 4));
    p[0].copy_(tensor("matrix").select(0, -1).narrow(0, 0, 4));
    ASSERT_EQ(records().size(), 2U);
    EXPECT_EQ(records()[0].copy, (StridedCopy{40, 8, 2, {2, 4}, {16, 2}, {8, 2}}));
    EXPECT_EQ(records()[1].copy, (StridedCopy{80, 0, 2, {4}, {2}, {2}}));
    EXPECT_FALSE(records()[0].converts());
}

TEST_F(RecordingTensorTest, AReshapeThatPyTorchCopiesStaysAffine) {
    const RecordingTensor flat = tensor("matrix").t().reshape({-1});
    EXPECT_EQ(flat.sizes(), Dims({48}));
    EXPECT_EQ(flat.affine().pieces().size(), 1U);
    // A cut inside a column gives head, whole columns and tail.
    const RecordingParameter p = recorder_.add_parameter("p", DType::kBF16, {21});
    p.copy_(flat.narrow(0, 4, 21));
    EXPECT_EQ(records().size(), 3U);
    const DemandMemory memory(recorder_.demand());
    for (std::int64_t i = 0; i < 21; ++i) {
        const std::int64_t at = i + 4;
        const Origin expected{catalogue_.find("matrix").value(), DType::kBF16, 2 * (at % 6 * 8 + at / 6)};
        EXPECT_THAT(memory.parameter(0)[static_cast<std::size_t>(i)], ElementsAre(expected)) << i;
    }
}

// L18: the permutation happens before the cut, whatever the number of ranks.
TEST_F(RecordingTensorTest, RotaryPermutationThenShardIsExact) {
    const RecordingTensor permuted = tensor("matrix").view({1, 3, 2, 8}).transpose(1, 2).reshape({6, 8});
    const RecordingParameter p = recorder_.add_parameter("p", DType::kBF16, {2, 8});
    p.copy_(permuted.narrow(0, 2, 2));
    const DemandMemory memory(recorder_.demand());
    // New rows 0..5 are the old rows 0 2 4 1 3 5.
    EXPECT_EQ(memory.parameter(0)[0].front().byte, 4 * 16);
    EXPECT_EQ(memory.parameter(0)[8].front().byte, 1 * 16);
}

TEST_F(RecordingTensorTest, DtypeViewsOfOtherSizes) {
    const RecordingParameter p = recorder_.add_parameter("p", DType::kF32, {4, 3});
    p.copy_(tensor("bytes").view(DType::kF32));
    ASSERT_EQ(records().size(), 1U);
    EXPECT_EQ(records()[0].copy.item, 4);
    EXPECT_EQ(records()[0].source_dtype, DType::kF32);
    EXPECT_EQ(tensor("f32").view(DType::kU8).sizes(), Dims({16}));
    EXPECT_THAT(refusal([&] { (void)tensor("bytes").narrow(1, 1, 8).view(DType::kF32); }), HasSubstr("offset 1"));
    EXPECT_THAT(refusal([&] { (void)tensor("bytes").t().view(DType::kU16); }), HasSubstr("stride 1"));
    EXPECT_THAT(refusal([&] { (void)tensor("scalar").view(DType::kU8); }), HasSubstr("0-d"));
    EXPECT_THAT(refusal([&] { (void)tensor("bytes").t().contiguous().view(DType::kU16); }), HasSubstr("lie apart"));
    EXPECT_EQ(tensor("scalar").view(DType::kI32).dtype(), DType::kI32);
}

TEST_F(RecordingTensorTest, ConversionsAreDeclared) {
    const RecordingParameter wide = recorder_.add_parameter("wide", DType::kF32, {6, 8});
    wide.copy_(tensor("matrix").to(DType::kF32));
    ASSERT_EQ(records().size(), 1U);
    EXPECT_TRUE(records()[0].converts());
    EXPECT_EQ(records()[0].source_dtype, DType::kBF16);
    EXPECT_EQ(records()[0].parameter_dtype, DType::kF32);
    EXPECT_EQ(records()[0].copy, (StridedCopy{0, 0, 2, {6, 8}, {16, 2}, {32, 4}}));

    EXPECT_EQ(refusal([&] { wide.copy_(tensor("matrix")); }),
              "tensor matrix [6, 8] bf16: copy_ into parameter wide [6, 8] f32 refused: dtype bf16 differs from the "
              "destination's f32; declare the conversion with to");
    EXPECT_THAT(refusal([&] { (void)tensor("matrix").to(DType::kI32); }), HasSubstr("no conversion from bf16 to i32"));
    EXPECT_THAT(refusal([&] { (void)tensor("fp8").to(DType::kBF16); }), HasSubstr("no conversion from f8e4m3 to bf16"));
    EXPECT_THAT(refusal([&] { (void)tensor("f32").to(DType::kBF16).to(DType::kF32); }), HasSubstr("converted again"));
    EXPECT_THAT(refusal([&] { (void)tensor("f32").to(DType::kBF16).view(DType::kU16); }),
                HasSubstr("cannot be viewed"));
}

// L16: what needs data is refused where it is recorded, by tensor, chain and operation.
TEST_F(RecordingTensorTest, DataNeedingOperationsAreRefusedByName) {
    const RecordingTensor t = tensor("matrix").narrow(0, 0, 3);
    EXPECT_EQ(refusal([&] { (void)t.item(); }),
              "tensor matrix [6, 8] bf16: narrow(0, 0, 3): item() refused: it needs data, and a plan is made without");
    EXPECT_THAT(refusal([&] { (void)(t + 1); }), HasSubstr("add()"));
    EXPECT_THAT(refusal([&] { (void)(t - t); }), HasSubstr("sub()"));
    EXPECT_THAT(refusal([&] { (void)(t * 2); }), HasSubstr("mul()"));
    EXPECT_THAT(refusal([&] { (void)(t / t); }), HasSubstr("div()"));
    EXPECT_THAT(refusal([&] { (void)t.masked_select(t); }), HasSubstr("masked_select()"));
    EXPECT_THAT(refusal([&] { (void)t.index(t); }), HasSubstr("index(tensor)"));
    EXPECT_THAT(refusal([&] { t.needs_data("softmax()"); }), HasSubstr("softmax()"));
    EXPECT_TRUE(records().empty());
}

// D11, and broadcasting: equal byte counts are not enough.
TEST_F(RecordingTensorTest, ShapesMustBeEqual) {
    const RecordingParameter p = recorder_.add_parameter("p", DType::kBF16, {8, 6});
    EXPECT_THAT(refusal([&] { p.copy_(tensor("matrix")); }),
                HasSubstr("shape [6, 8] differs from the destination's [8, 6]"));
    const RecordingParameter row = recorder_.add_parameter("row", DType::kBF16, {6, 8});
    EXPECT_THAT(refusal([&] { row.copy_(tensor("matrix").narrow(0, 0, 1)); }), HasSubstr("expand"));
    row.copy_(tensor("matrix").narrow(0, 0, 1).expand({6, -1}));
    ASSERT_EQ(records().size(), 1U);
    EXPECT_EQ(records()[0].copy, (StridedCopy{0, 0, 2, {6, 8}, {0, 2}, {16, 2}}));
}

TEST_F(RecordingTensorTest, ParametersTakeViewsOnly) {
    const RecordingParameter p = recorder_.add_parameter("p", DType::kBF16, {8, 6});
    p.t().copy_(tensor("matrix"));
    ASSERT_EQ(records().size(), 1U);
    EXPECT_EQ(records()[0].copy, (StridedCopy{0, 0, 2, {6, 8}, {16, 2}, {2, 12}}));
    EXPECT_THAT(refusal([&] { (void)p.t().reshape({48}); }),
                HasSubstr("parameter p [8, 6] bf16: t(): reshape(48) refused: it would copy"));
    EXPECT_THAT(refusal([&] { (void)p.t().contiguous(); }), HasSubstr("it would copy"));
    EXPECT_EQ(p.view({2, 4, 6}).flatten(0, 1).sizes(), Dims({8, 6}));
    const RecordingParameter q = recorder_.add_parameter("q", DType::kBF16, {1, 8});
    EXPECT_THAT(refusal([&] { q.expand({6, 8}).copy_(tensor("matrix")); }), HasSubstr("expanded"));
    EXPECT_THAT(refusal([&] { q.expand({6, 8}).zero_(); }), HasSubstr("expanded"));
    EXPECT_THAT(refusal([&] { recorder_.add_parameter("q", DType::kBF16, {1}); }), HasSubstr("declared twice"));
}

// D08: scalars.
TEST_F(RecordingTensorTest, ZeroDimensionalTensors) {
    const RecordingParameter p = recorder_.add_parameter("p", DType::kF32, {3});
    p.narrow(0, 1, 1).copy_(tensor("scalar").reshape({1}));
    p[2].copy_(tensor("scalar"));
    p.narrow(0, 0, 1).copy_(tensor("one"));
    const DemandMemory memory(recorder_.demand());
    const Origin scalar{catalogue_.find("scalar").value(), DType::kF32, 0};
    EXPECT_THAT(memory.parameter(0)[0], ElementsAre(Origin{catalogue_.find("one").value(), DType::kF32, 0}));
    EXPECT_THAT(memory.parameter(0)[1], ElementsAre(scalar));
    EXPECT_THAT(memory.parameter(0)[2], ElementsAre(scalar));
    EXPECT_EQ(records()[0].copy.bytes(), 4);
    EXPECT_THAT(refusal([&] { (void)tensor("scalar").narrow(0, 0, 1); }), HasSubstr("0-d tensor has no dimensions"));
    EXPECT_THAT(refusal([&] { (void)tensor("scalar")[0]; }), HasSubstr("0-d tensor has no dimensions"));
}

// D09: tensors without elements record nothing and refuse nothing.
TEST_F(RecordingTensorTest, ZeroSizeTensors) {
    recorder_.add_parameter("a", DType::kBF16, {0}).copy_(tensor("empty"));
    recorder_.add_parameter("b", DType::kBF16, {0, 2}).copy_(tensor("empty2").t());
    recorder_.add_parameter("c", DType::kBF16, {6, 0}).copy_(tensor("matrix").narrow(1, 8, 0));
    recorder_.add_parameter("d", DType::kBF16, {0, 3}).zero_();
    EXPECT_TRUE(records().empty());
    EXPECT_TRUE(recorder_.demand().fills.empty());
    EXPECT_EQ(tensor("empty").chunk(3).size(), 3U);
    EXPECT_EQ(tensor("empty").split(2).size(), 1U);
    EXPECT_EQ(tensor("empty2").unbind(1).size(), 0U);
    EXPECT_EQ(RecordingTensor::cat({tensor("empty"), tensor("matrix")}).sizes(), Dims({6, 8}));
    EXPECT_THAT(refusal([&] { (void)tensor("empty2").view({-1, 0}); }), HasSubstr("can be anything"));
}

TEST_F(RecordingTensorTest, CatAndStackOfSeveralTensors) {
    const RecordingParameter p = recorder_.add_parameter("p", DType::kBF16, {2, 6, 8});
    p.copy_(RecordingTensor::stack({tensor("matrix"), tensor("matrix").view({8, 6}).t()}));
    EXPECT_EQ(records().size(), 2U);
    const RecordingParameter q = recorder_.add_parameter("q", DType::kBF16, {7, 8});
    q.copy_(RecordingTensor::cat({tensor("cube").reshape({3, 8}), tensor("matrix").narrow(0, 1, 4)}));
    ASSERT_EQ(records().size(), 4U);
    EXPECT_EQ(records()[2].tensor, catalogue_.find("cube").value());
    EXPECT_EQ(records()[3].copy.dst_offset, 48);
    EXPECT_THAT(refusal([&] { (void)RecordingTensor::cat({tensor("matrix"), tensor("bytes")}); }), HasSubstr("dtypes"));
    EXPECT_THAT(refusal([&] { (void)RecordingTensor::cat({tensor("matrix"), tensor("cube")}); }),
                HasSubstr("do not fit"));
    EXPECT_THAT(refusal([&] { (void)RecordingTensor::stack({tensor("matrix"), tensor("matrix").t()}); }),
                HasSubstr("differ"));
    EXPECT_THAT(refusal([&] { (void)RecordingTensor::cat(std::span<const RecordingTensor>{}); }),
                HasSubstr("at least one"));
}

TEST_F(RecordingTensorTest, AnAscendingIndexListIsOnePiece) {
    EXPECT_EQ(tensor("matrix").index_select(0, {1, 2, 3}).affine().pieces().size(), 1U);
    EXPECT_EQ(tensor("matrix").index_select(0, {0, 2, 4}).affine().pieces().size(), 1U);
    EXPECT_EQ(tensor("matrix").index_select(0, {5, 0, -2}).affine().pieces().size(), 2U);
    EXPECT_THAT(refusal([&] { (void)tensor("matrix").index_select(0, {0, 6}); }), HasSubstr("index 6 is out of range"));
}

TEST_F(RecordingTensorTest, MessagesShowTheLastOperationsOfALongChain) {
    RecordingTensor t = tensor("matrix");
    for (int i = 0; i < 9; ++i) {
        t = t.t();
    }
    EXPECT_EQ(t.view({2, 4, 1, 2, 3}).description(),
              "tensor matrix [6, 8] bf16: ....t().t().t().t().t().view(2, 4, 1, 2, ...)");
}

TEST_F(RecordingTensorTest, MissingTensorsAreRefusedByName) {
    EXPECT_THAT(refusal([&] { (void)tensor("no.such.weight"); }), HasSubstr("no.such.weight is missing"));
}

// What falls into very many pieces is refused while recording; large but regular reshapes are not.
TEST_F(RecordingTensorTest, HopelesslyFineCutsAreRefused) {
    const Catalogue big = *Catalogue::create({{"w", DType::kU8, {200003, 2}, 0, {}}}, 1);
    const Recorder recorder(big);
    std::vector<std::int64_t> backwards(70000);
    for (std::size_t i = 0; i < backwards.size(); ++i) {
        backwards[i] = static_cast<std::int64_t>(backwards.size() - i);
    }
    EXPECT_THAT(refusal([&] { (void)recorder.tensor("w").index_select(0, backwards); }),
                HasSubstr("index_select(0) refused: the result falls into more than 65536 pieces"));
    EXPECT_LT(recorder.tensor("w").t().reshape({-1}).narrow(0, 1, 400004).reshape({4, -1}).affine().pieces().size(),
              10U);
}

}  // namespace
}  // namespace sluice::test

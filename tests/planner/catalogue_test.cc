#include "planner/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CatalogueTensor tensor(std::string name, Dims shape = {4, 2}) {
    return {std::move(name), DType::kBF16, std::move(shape), 0, {}};
}

std::vector<std::string> names(const Catalogue& catalogue) {
    std::vector<std::string> result;
    for (const CatalogueTensor& t : catalogue.tensors()) {
        result.push_back(t.name);
    }
    return result;
}

TEST(GroupOf, NumbersLayersNumericallyAndPutsEveryNameInOneGroup) {
    EXPECT_EQ(group_of("model.layers.0.mlp.gate.weight", 12), 1);
    EXPECT_EQ(group_of("model.layers.1.self_attn.q_proj.weight", 12), 2);
    EXPECT_EQ(group_of("model.layers.10.self_attn.q_proj.weight", 12), 11);
    EXPECT_EQ(group_of("model.layers.2.self_attn.q_proj.weight", 12), 3);
    EXPECT_EQ(group_of("language_model.model.layers.3.feed_forward.router.weight", 12), 4);
    EXPECT_EQ(group_of("model.norm.weight", 12), 13);
    EXPECT_EQ(group_of("lm_head.weight", 12), 13);
    EXPECT_EQ(group_of("language_model.lm_head.weight", 12), 13);
    EXPECT_EQ(group_of("language_model.model.norm.weight", 12), 13);
}

TEST(GroupOf, EverythingElseIsGroupZero) {
    for (const char* name :
         {"model.embed_tokens.weight", "mtp.layers.0.mlp.weight", "visual.blocks.0.attn.weight",
          "vision_model.model.layers.3.mlp.fc1.weight", "model.layers.12.eh_proj.weight", "model.layers.x.weight",
          "model.layers.-1.weight", "model.layers.3", "model.layers.99999999999999999999.weight", "model.normal.weight",
          "multi_modal_projector.linear_1.weight", ""}) {
        EXPECT_EQ(group_of(name, 12), 0) << name;
    }
}

TEST(Catalogue, OrderIsGroupThenNameWhateverOrderItCameIn) {
    std::vector<CatalogueTensor> tensors;
    for (const char* name : {"model.layers.10.b", "lm_head.weight", "model.layers.2.b", "model.embed_tokens.weight",
                             "model.layers.1.a.w", "model.layers.2.B", "model.norm.weight", "mtp.layers.0.x"}) {
        tensors.push_back(tensor(name));
    }
    const Catalogue first = Catalogue::create(tensors, 11).value();
    EXPECT_THAT(names(first),
                ElementsAre("model.embed_tokens.weight", "mtp.layers.0.x", "model.layers.1.a.w", "model.layers.2.B",
                            "model.layers.2.b", "model.layers.10.b", "lm_head.weight", "model.norm.weight"));
    EXPECT_EQ(first.groups(), 13);
    std::mt19937 random(7);
    for (int round = 0; round < 20; ++round) {
        std::shuffle(tensors.begin(), tensors.end(), random);
        const Catalogue other = Catalogue::create(tensors, 11).value();
        EXPECT_EQ(names(other), names(first));
        EXPECT_EQ(other.digest(), first.digest());
    }
}

TEST(Catalogue, DigestSeesNamesDtypesAndShapes) {
    const auto digest = [](std::vector<CatalogueTensor> tensors) {
        return Catalogue::create(std::move(tensors), 1).value().digest();
    };
    const std::uint64_t base = digest({tensor("a", {4, 2}), tensor("b", {8})});
    EXPECT_NE(base, digest({tensor("a", {2, 4}), tensor("b", {8})}));
    EXPECT_NE(base, digest({tensor("a", {4, 2}), tensor("c", {8})}));
    EXPECT_NE(base, digest({tensor("a", {4, 2})}));
    EXPECT_NE(base, digest({tensor("a", {4, 2, 8}), tensor("b", {})}));
    CatalogueTensor f16 = tensor("b", {8});
    f16.dtype = DType::kF16;
    EXPECT_NE(base, digest({tensor("a", {4, 2}), f16}));
}

TEST(Catalogue, FindsEveryNameAlsoInACopy) {
    std::vector<CatalogueTensor> tensors;
    for (int layer = 0; layer < 50; ++layer) {
        for (int expert = 0; expert < 1400; ++expert) {
            tensors.push_back(tensor("model.layers." + std::to_string(layer) + ".mlp.experts." +
                                     std::to_string(expert) + ".up_proj.weight"));
        }
    }
    const Catalogue original = Catalogue::create(std::move(tensors), 50).value();
    const Catalogue copy = original;  // NOLINT(performance-unnecessary-copy-initialization): the copy is what is tested
    ASSERT_EQ(copy.size(), 70'000U);
    for (std::size_t id = 0; id < copy.size(); ++id) {
        ASSERT_EQ(copy.find(original[static_cast<TensorId>(id)].name), static_cast<TensorId>(id));
    }
    EXPECT_FALSE(copy.find("model.layers.50.mlp.experts.0.up_proj.weight"));
    EXPECT_FALSE(copy.find(""));
    EXPECT_EQ(copy.bytes(), 70'000 * 16);
}

TEST(Catalogue, RefusesWhatHasNoMeaning) {
    const auto message = [](std::vector<CatalogueTensor> tensors) {
        const Result<Catalogue> result = Catalogue::create(std::move(tensors), 1);
        EXPECT_FALSE(result.ok());
        EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
        return result.status().message();
    };
    EXPECT_THAT(message({tensor("twice"), tensor("once"), tensor("twice")}), HasSubstr("twice"));
    EXPECT_THAT(message({tensor("below", {4, -1})}), HasSubstr("below"));
    constexpr std::int64_t kHuge = std::int64_t{1} << 40;
    EXPECT_THAT(message({tensor("wide", {kHuge, kHuge})}), HasSubstr("wide"));
    EXPECT_THAT(message({tensor("bytes", {std::numeric_limits<std::int64_t>::max()})}), HasSubstr("bytes"));
    const Dims most{std::numeric_limits<std::int64_t>::max() / 2};
    EXPECT_THAT(message({tensor("one", most), tensor("two", most)}), HasSubstr("two"));
    CatalogueTensor tied = tensor("head");
    tied.tied_to = "nobody";
    EXPECT_THAT(message({tied}), HasSubstr("nobody"));
}

TEST(Catalogue, AllowsEmptyAndScalarTensors) {
    const Catalogue catalogue = Catalogue::create({tensor("scalar", {}), tensor("none", {0, 4})}, 0).value();
    EXPECT_EQ(catalogue.groups(), 2);
    EXPECT_EQ(catalogue.bytes(), 2);
}

}  // namespace
}  // namespace sluice

// Each architecture's function from config to tensor list against the catalogues, which were made apart from it.
#include "planner/builtin_models.h"
#include "planner/catalogue.h"
#include "planner/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>

namespace sluice {
namespace {

using ::testing::HasSubstr;

class Architecture : public ::testing::TestWithParam<std::string> {
protected:
    CatalogueFile file_ = builtin_model(GetParam()).value();
    int layers() const { return static_cast<int>(file_.config.integer("num_hidden_layers").value()); }
};

void expect_equal(const Catalogue& derived, const Catalogue& listed) {
    ASSERT_EQ(derived.size(), listed.size());
    for (std::size_t i = 0; i < derived.size(); ++i) {
        const CatalogueTensor& a = derived[static_cast<TensorId>(i)];
        const CatalogueTensor& b = listed[static_cast<TensorId>(i)];
        ASSERT_EQ(a.name, b.name);
        ASSERT_EQ(a.shape, b.shape) << a.name;
        ASSERT_EQ(a.dtype, b.dtype) << a.name;
        ASSERT_EQ(a.tied_to, b.tied_to) << a.name;
        ASSERT_EQ(a.group, b.group) << a.name;
    }
    EXPECT_EQ(derived.digest(), listed.digest());
}

TEST_P(Architecture, CheckpointTensorsEqualTheCatalogue) {
    ASSERT_FALSE(file_.checkpoint_tensors.empty());
    expect_equal(checkpoint_catalogue(file_.config).value(),
                 Catalogue::create(file_.checkpoint_tensors, layers()).value());
}

TEST_P(Architecture, PublishedTensorsEqualTheCatalogue) {
    // Files without a published form are published as the trainer holds them.
    const auto& listed = file_.published_tensors.empty() ? file_.checkpoint_tensors : file_.published_tensors;
    expect_equal(checkpoint_catalogue(file_.config, WeightForm::kPublished).value(),
                 Catalogue::create(listed, layers()).value());
}

TEST_P(Architecture, ShrinksAndKeepsItsStructure) {
    ModelConfig small = file_.config;
    ASSERT_TRUE(small.set("num_hidden_layers", "5").ok());
    ASSERT_TRUE(small.set("vocab_size", "1010").ok());
    const Catalogue catalogue = checkpoint_catalogue(small).value();
    EXPECT_EQ(catalogue.groups(), 7);
    const Catalogue full = checkpoint_catalogue(file_.config).value();
    for (const CatalogueTensor& tensor : catalogue.tensors()) {
        const std::optional<TensorId> id = full.find(tensor.name);
        ASSERT_TRUE(id) << tensor.name;
        const Dims& whole = full[*id].shape;
        if (tensor.name.find("embed_tokens") == std::string::npos && tensor.name.find("lm_head") == std::string::npos) {
            EXPECT_EQ(tensor.shape, whole) << tensor.name;
        } else {
            EXPECT_EQ(tensor.shape, (Dims{1010, whole[1]})) << tensor.name;
        }
    }
}

TEST_P(Architecture, ImpossibleSizesAreNamed) {
    for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                            "vocab_size", "intermediate_size"}) {
        for (const char* value : {"0", "-1", "9000000000000000000", "1073741825"}) {
            ModelConfig config = file_.config;
            ASSERT_TRUE(config.set(key, value).ok()) << key;
            const Status status = checkpoint_catalogue(config).status();
            EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << key << "=" << value;
            EXPECT_THAT(status.message(), HasSubstr(key));
        }
    }
    ModelConfig config = file_.config;
    ASSERT_TRUE(config.set("num_key_value_heads", "11").ok());
    EXPECT_THAT(checkpoint_catalogue(config).status().message(), HasSubstr("num_key_value_heads 11"));
}

std::vector<std::string> model_names() {
    std::vector<std::string> names;
    for (const BuiltinModel& model : builtin_models()) {
        names.emplace_back(model.name);
    }
    return names;
}

INSTANTIATE_TEST_SUITE_P(Models, Architecture, ::testing::ValuesIn(model_names()), [](const auto& model) {
    std::string name = model.param;
    std::replace_if(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
    return name;
});

TEST(CheckpointCatalogue, ExpertsAndWidthsCanBeSet) {
    ModelConfig config = builtin_model("Qwen3-30B-A3B").value().config;
    for (const auto& [key, value] : std::map<std::string, std::string>{{"num_experts", "6"},
                                                                       {"num_hidden_layers", "3"},
                                                                       {"hidden_size", "64"},
                                                                       {"moe_intermediate_size", "48"},
                                                                       {"head_dim", "16"},
                                                                       {"num_attention_heads", "8"},
                                                                       {"num_key_value_heads", "2"},
                                                                       {"mlp_only_layers", "[1]"},
                                                                       {"intermediate_size", "96"}}) {
        ASSERT_TRUE(config.set(key, value).ok()) << key;
    }
    const Catalogue catalogue = checkpoint_catalogue(config).value();
    EXPECT_EQ(catalogue.size(), 3U + 3 * 8 + 2 * (1 + 6 * 3) + 3);
    const auto shape = [&](const char* name) { return catalogue[catalogue.find(name).value()].shape; };
    EXPECT_EQ(shape("model.layers.0.self_attn.q_proj.weight"), (Dims{128, 64}));
    EXPECT_EQ(shape("model.layers.2.mlp.experts.5.down_proj.weight"), (Dims{64, 48}));
    EXPECT_EQ(shape("model.layers.1.mlp.down_proj.weight"), (Dims{64, 96}));
    EXPECT_FALSE(catalogue.find("model.layers.1.mlp.gate.weight"));
}

TEST(CheckpointCatalogue, HeadDimFollowsFromHiddenSizeWhereItIsNotGiven) {
    ModelConfig config = builtin_model("Llama-3.1-8B").value().config;
    ASSERT_TRUE(config.set("hidden_size", "100").ok());
    EXPECT_THAT(checkpoint_catalogue(config).status().message(),
                HasSubstr("hidden_size 100 is no multiple of num_attention_heads 32"));
    ASSERT_TRUE(config.set("num_attention_heads", "4").ok());
    ASSERT_TRUE(config.set("num_key_value_heads", "1").ok());
    const Catalogue catalogue = checkpoint_catalogue(config).value();
    EXPECT_EQ(catalogue[catalogue.find("model.layers.0.self_attn.k_proj.weight").value()].shape, (Dims{25, 100}));
}

TEST(CheckpointCatalogue, VisionCanBeShrunkByDottedKeys) {
    ModelConfig config = builtin_model("Llama-4-Scout-17B-16E").value().config;
    ASSERT_TRUE(config.set("vision_config.num_hidden_layers", "2").ok());
    ASSERT_TRUE(config.set("num_local_experts", "4").ok());
    const Catalogue catalogue = checkpoint_catalogue(config).value();
    EXPECT_TRUE(catalogue.find("vision_model.model.layers.1.mlp.fc1.weight"));
    EXPECT_FALSE(catalogue.find("vision_model.model.layers.2.mlp.fc1.weight"));
    EXPECT_EQ(catalogue[catalogue.find("language_model.model.layers.47.feed_forward.experts.down_proj").value()].shape,
              (Dims{4, 8192, 5120}));
}

TEST(CheckpointCatalogue, UnknownArchitecturesAreNamed) {
    const Status status =
        checkpoint_catalogue(ModelConfig::create({{"hidden_size", 4}}, "Qwen3MoEForCausalLM").value()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("did you mean Qwen3MoeForCausalLM"));
}

TEST(CatalogueFile, MalformedFilesAreNamed) {
    for (
        const char* text :
        {"", "{", "[]", "{}", R"({"architecture": "X"})", R"({"architecture": "X", "config": 3})",
         R"({"architecture": "X", "config": {}, "checkpoint_tensors": 4})",
         R"({"architecture": "X", "config": {}, "checkpoint_tensors": [4]})",
         R"({"architecture": "X", "config": {}, "checkpoint_tensors": [{"pattern": "a", "shape": [-1], "dtype": "bf16"}]})",
         R"({"architecture": "X", "config": {}, "checkpoint_tensors": [{"pattern": "a", "shape": [1], "dtype": "b16"}]})",
         R"({"architecture": "X", "config": {}, "checkpoint_tensors": [{"pattern": "a{L}", "shape": [1], "dtype": "bf16"}]})",
         R"({"architecture": "X", "config": {}, "checkpoint_tensors": [{"pattern": "a{L}", "layers": [3, 1], "shape": [1], "dtype": "bf16"}]})"}) {
        const Status status = parse_catalogue_file(text, "some/file.json").status();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
        EXPECT_THAT(status.message(), HasSubstr("some/file.json"));
    }
    const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
    EXPECT_FALSE(parse_catalogue_file(R"({"architecture": "X", "config": {}, "notes": )" + deep + "}", "deep").ok());
}

}  // namespace
}  // namespace sluice

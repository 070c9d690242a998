#include "planner/model_config.h"

#include "planner/builtin_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using ::testing::HasSubstr;

ModelConfig config(const char* text, std::string architecture = "LlamaForCausalLM") {
    return ModelConfig::create(nlohmann::json::parse(text), std::move(architecture)).value();
}

constexpr const char* kMixed =
    R"({"hidden_size": 64, "rope_theta": 10000.0, "tie_word_embeddings": false, "model_type": "llama",
    "mlp_only_layers": [], "rope_scaling": {"factor": 8.0}, "q_lora_rank": null, "torch_dtype": "bfloat16"})";

TEST(ModelConfig, TakesTheArchitectureFromConfigJson) {
    const auto created = ModelConfig::create(nlohmann::json::parse(R"({"architectures": ["Qwen3ForCausalLM"]})"));
    EXPECT_EQ(created.value().architecture(), "Qwen3ForCausalLM");
    for (const char* bad : {"[]", "3", "{}", R"({"architectures": []})", R"({"architectures": [4]})"}) {
        EXPECT_EQ(ModelConfig::create(nlohmann::json::parse(bad)).status().code(), StatusCode::kInvalidArgument) << bad;
    }
}

TEST(ModelConfig, SetReplacesByTheSameType) {
    ModelConfig c = config(kMixed);
    EXPECT_TRUE(c.set("hidden_size", "128").ok());
    EXPECT_TRUE(c.set("rope_theta", "500").ok());
    EXPECT_TRUE(c.set("tie_word_embeddings", "true").ok());
    EXPECT_TRUE(c.set("model_type", "12").ok());
    EXPECT_TRUE(c.set("mlp_only_layers", "[0, 1]").ok());
    EXPECT_TRUE(c.set("rope_scaling.factor", "2.5").ok());
    EXPECT_TRUE(c.set("q_lora_rank", "16").ok());
    EXPECT_EQ(c.integer("hidden_size").value(), 128);
    EXPECT_TRUE(c.flag_or("tie_word_embeddings", false));
    EXPECT_EQ(*c.find("model_type"), "12");
    EXPECT_EQ(*c.find("mlp_only_layers"), (nlohmann::json{0, 1}));
    EXPECT_EQ(*c.find("rope_scaling.factor"), 2.5);
    EXPECT_EQ(c.integer("q_lora_rank").value(), 16);
}

TEST(ModelConfig, SetRefusesUnknownKeysAndWrongTypes) {
    ModelConfig c = config(kMixed);
    const nlohmann::json before = c.json();
    EXPECT_THAT(c.set("hiden_size", "4").message(), HasSubstr("hidden_size"));
    for (const auto& [key, value] :
         std::vector<std::pair<const char*, const char*>>{{"nothing", "1"},
                                                          {"", "1"},
                                                          {".", "1"},
                                                          {"rope_scaling.nothing", "1"},
                                                          {"hidden_size.x", "1"},
                                                          {"hidden_size", "4.5"},
                                                          {"hidden_size", "four"},
                                                          {"hidden_size", ""},
                                                          {"hidden_size", "true"},
                                                          {"hidden_size", "99999999999999999999999"},
                                                          {"tie_word_embeddings", "1"},
                                                          {"tie_word_embeddings", "yes"},
                                                          {"mlp_only_layers", "3"},
                                                          {"rope_theta", "many"},
                                                          {"rope_scaling", "[]"}}) {
        const Status status = c.set(key, value);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << key << "=" << value;
        EXPECT_THAT(status.message(), HasSubstr(key));
    }
    EXPECT_EQ(c.json(), before);
}

TEST(ModelConfig, UndottedKeysMeanTheTextModel) {
    ModelConfig c =
        config(R"({"text_config": {"hidden_size": 8, "num_hidden_layers": 4}, "vision_config": {"hidden_size": 6},
                               "hidden_size": 1, "torch_dtype": "float32"})");
    EXPECT_TRUE(c.set("hidden_size", "16").ok());
    EXPECT_TRUE(c.set("vision_config.hidden_size", "12").ok());
    EXPECT_TRUE(c.set("text_config.num_hidden_layers", "2").ok());
    EXPECT_EQ(c.json()["text_config"]["hidden_size"], 16);
    EXPECT_EQ(c.json()["vision_config"]["hidden_size"], 12);
    EXPECT_EQ(c.json()["hidden_size"], 1);
    EXPECT_EQ(c.integer("num_hidden_layers").value(), 2);
    EXPECT_EQ(c.dtype().value(), DType::kF32);
}

TEST(ModelConfig, IntegersArePositive) {
    for (const char* bad : {"0", "-3", "2.0", "\"4\"", "true", "null"}) {
        const ModelConfig c = config((std::string(R"({"hidden_size": )") + bad + "}").c_str());
        EXPECT_THAT(c.integer("hidden_size").status().message(), HasSubstr("hidden_size")) << bad;
    }
    EXPECT_THAT(config("{}").integer("hidden_size").status().message(), HasSubstr("hidden_size"));
}

TEST(ModelConfig, WorkerDtype) {
    EXPECT_EQ(config("{}").dtype().value(), DType::kBF16);
    EXPECT_EQ(config(R"({"torch_dtype": null})").dtype().value(), DType::kBF16);
    EXPECT_EQ(config(R"({"torch_dtype": "auto"})").dtype().value(), DType::kBF16);
    EXPECT_EQ(config(R"({"torch_dtype": "auto", "dtype": "float16"})").dtype().value(), DType::kF16);
    EXPECT_EQ(config(R"({"torch_dtype": "float16"})").dtype().value(), DType::kF16);
    EXPECT_EQ(config(R"({"dtype": "float32"})").dtype().value(), DType::kF32);
    for (const char* bad : {R"("fp16")", R"("")", R"("two\nlines")", "16"}) {
        const Status status = config((std::string(R"({"torch_dtype": )") + bad + "}").c_str()).dtype().status();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
        EXPECT_THAT(status.message(), HasSubstr(bad));
        EXPECT_THAT(status.message(), HasSubstr("known are float64, float32, float16, bfloat16, float8_e4m3fn"));
    }
}

TEST(BuiltinModels, UnknownNamesListNearOnes) {
    EXPECT_EQ(builtin_models().size(), 14U);
    const Status status = builtin_model("qwen3-30b").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("did you mean Qwen3-30B-A3B"));
    EXPECT_THAT(builtin_model("no such thing").status().message(), HasSubstr("Mixtral-8x7B"));
}

}  // namespace
}  // namespace sluice

#include "cli/model_source.h"

#include "cli/exit_code.h"
#include "cli/json_output.h"
#include "cli/weight_values.h"
#include "runtime/services/tensor_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <unistd.h>
#include <vector>

namespace sluice::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kConfig =
    R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 10, "tie_word_embeddings": TIED})";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
    return text.replace(text.find(what), what.size(), by);
}

/// A directory with the tensors of kConfig in two shards, every byte different from its neighbours.
class Directory : public ::testing::Test {
protected:
    void SetUp() override {
        path_ = std::filesystem::temp_directory_path() /
                ("sluice_model_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) +
                 std::to_string(::getpid()));
        std::filesystem::create_directories(path_);
    }
    void TearDown() override { std::filesystem::remove_all(path_); }

    struct Content {
        DType dtype;
        Dims shape;
        std::vector<std::byte> bytes;
    };
    using Contents = std::map<std::string, Content>;

    void write(bool tied, const std::function<void(Contents&)>& change = {}) {
        const std::string config = replaced(kConfig, "TIED", tied ? "true" : "false");
        ASSERT_TRUE(write_file((path_ / "config.json").string(), config).ok());
        const Catalogue catalogue =
            checkpoint_catalogue(ModelConfig::create(nlohmann::json::parse(config)).value()).value();
        Contents contents;
        for (const CatalogueTensor& tensor : catalogue.tensors()) {
            contents[tensor.name] = {tensor.dtype, tensor.shape, {}};
        }
        if (tied) {
            contents.erase("lm_head.weight");
        }
        if (change) {
            change(contents);
        }
        std::array<std::vector<SafetensorsTensor>, 2> shards;
        std::size_t number = 0;
        for (auto& [name, content] : contents) {
            content.bytes.resize(static_cast<std::size_t>(num_elements(content.shape) * size_of(content.dtype)));
            for (std::size_t i = 0; i < content.bytes.size(); ++i) {
                content.bytes[i] = static_cast<std::byte>(i * 31 + number * 7);
            }
            shards[number++ % 2].push_back({name, content.dtype, content.shape, content.bytes});
        }
        for (std::size_t i = 0; i < shards.size(); ++i) {
            std::reverse(shards[i].begin(), shards[i].end());
            ASSERT_TRUE(write_safetensors(path_ / ("model-" + std::to_string(i) + ".safetensors"), shards[i], {}).ok());
        }
        contents_ = std::move(contents);
    }

    [[nodiscard]] Result<Model> open(std::vector<std::string> sets = {}) const {
        return open_model({path_.string(), std::move(sets)});
    }

    std::filesystem::path path_;
    Contents contents_;
};

TEST_F(Directory, ListsTheFilesTensorsInCatalogueOrder) {
    write(false);
    const Model model = open().value();
    EXPECT_EQ(model.catalogue.size(), contents_.size());
    EXPECT_EQ(model.catalogue.groups(), 4);
    EXPECT_EQ(model.name, path_.filename().string());
    for (std::size_t id = 0; id < model.catalogue.size(); ++id) {
        const CatalogueTensor& tensor = model.catalogue[static_cast<TensorId>(id)];
        ASSERT_NE(model.file_tensors[id], nullptr);
        EXPECT_EQ(model.file_tensors[id]->name, tensor.name);
        EXPECT_EQ(model.file_tensors[id]->shape, tensor.shape);
    }
}

TEST_F(Directory, ValuesAreTheFilesBitsAndLaterVersionsOfThem) {
    write(false);
    const Model model = open().value();
    const WeightValues values(model);
    const TensorId id = model.catalogue.find("model.layers.1.mlp.down_proj.weight").value();
    const std::vector<std::byte>& bytes = contents_["model.layers.1.mlp.down_proj.weight"].bytes;
    std::vector<std::byte> read(20);
    values.read(id, 7, 10, 1, read.data());
    EXPECT_TRUE(std::equal(read.begin(), read.end(), bytes.begin() + 14));
    values.read(id, 7, 10, 3, read.data());
    std::vector<std::byte> third(bytes.begin() + 14, bytes.begin() + 34);
    advance_to_version(name_hash("model.layers.1.mlp.down_proj.weight"), DType::kBF16, 7, 10, 3, third.data());
    EXPECT_EQ(read, third);
    EXPECT_FALSE(std::equal(read.begin(), read.end(), bytes.begin() + 14));
}

TEST_F(Directory, ShapesAgainstTheConfigAreNamed) {
    write(false, [](Contents& contents) { contents["model.layers.0.self_attn.k_proj.weight"].shape = {8, 9}; });
    const Status status = open().status();
    EXPECT_EQ(exit_code(status.code()), kBadInput);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("model.layers.0.self_attn.k_proj.weight"), HasSubstr("[8, 9]"),
                                        HasSubstr("[8, 8]"), HasSubstr(path_.string())));
}

TEST_F(Directory, OverriddenShapesNoLongerFit) {
    write(false);
    EXPECT_EQ(exit_code(open({"vocab_size=20"}).status().code()), kBadInput);
    EXPECT_EQ(exit_code(open({"nonsense=20"}).status().code()), kBadInput);
    EXPECT_EQ(exit_code(open({"vocab_size"}).status().code()), kBadInput);
    EXPECT_TRUE(open({"vocab_size=10"}).ok());
}

TEST_F(Directory, MissingTensorsAreNamed) {
    write(false, [](Contents& contents) { contents.erase("model.layers.1.input_layernorm.weight"); });
    const Status status = open().status();
    EXPECT_EQ(exit_code(status.code()), kPlanRefused);
    EXPECT_THAT(status.message(), HasSubstr("model.layers.1.input_layernorm.weight"));
}

TEST_F(Directory, TensorsNobodyAskedForStayListed) {
    write(false, [](Contents& contents) { contents["model.layers.2.eh_proj.weight"] = {DType::kF32, {3}, {}}; });
    const Model model = open().value();
    const std::optional<TensorId> id = model.catalogue.find("model.layers.2.eh_proj.weight");
    ASSERT_TRUE(id);
    EXPECT_EQ(model.catalogue[*id].group, 0);
    EXPECT_EQ(model.catalogue[*id].dtype, DType::kF32);
}

TEST_F(Directory, ATiedModelNeedsNoHead) {
    write(true);
    const Model model = open().value();
    EXPECT_FALSE(model.catalogue.find("lm_head.weight"));
    EXPECT_FALSE(tied_head_warning(model));
}

TEST_F(Directory, AStoredHeadOfATiedModelIsTiedAndWarnedOfWhenItDiffers) {
    write(true, [](Contents& contents) { contents["lm_head.weight"] = {DType::kBF16, {10, 8}, {}}; });
    const Model model = open().value();
    EXPECT_EQ(model.catalogue[model.catalogue.find("lm_head.weight").value()].tied_to, "model.embed_tokens.weight");
    EXPECT_THAT(tied_head_warning(model).value_or(""), HasSubstr("lm_head.weight"));
}

TEST_F(Directory, BrokenConfigsAreNamed) {
    write(false);
    for (const char* text : {"", "{", "[]", "{}", R"({"architectures": ["NoSuchForCausalLM"]})"}) {
        ASSERT_TRUE(write_file((path_ / "config.json").string(), text).ok());
        EXPECT_EQ(exit_code(open().status().code()), kBadInput) << text;
    }
    ASSERT_TRUE(write_file((path_ / "config.json").string(),
                           "{\"a\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}")
                    .ok());
    EXPECT_EQ(exit_code(open().status().code()), kBadInput);
    std::filesystem::remove(path_ / "config.json");
    EXPECT_THAT(open().status().message(), HasSubstr("config.json"));
}

TEST_F(Directory, ACatalogueFileIsReadByPath) {
    const std::string path = (path_ / "mine.json").string();
    const std::string text =
        R"({"name": "mine", "architecture": "Qwen3ForCausalLM", "config": )" + replaced(kConfig, "TIED", "false") + "}";
    ASSERT_TRUE(write_file(path, text).ok());
    const Model model = open_model({path, {"num_hidden_layers=1"}}).value();
    EXPECT_EQ(model.name, "mine");
    EXPECT_EQ(model.catalogue.groups(), 3);
    EXPECT_EQ(open_model({path + ".no", {}}).status().code(), StatusCode::kInvalidArgument);
}

TEST(BuiltinModel, GeneratedValuesFollowTheNameOfTheTiedTensor) {
    const Model model = open_model({"Qwen3-0.6B", {"num_hidden_layers=1"}}).value();
    const WeightValues values(model);
    std::vector<std::byte> head(64);
    std::vector<std::byte> table(64);
    std::vector<std::byte> expected(64);
    for (const std::int64_t version : {1, 2}) {
        values.read(model.catalogue.find("lm_head.weight").value(), 1000, 32, version, head.data());
        values.read(model.catalogue.find("model.embed_tokens.weight").value(), 1000, 32, version, table.data());
        fill_generated(name_hash("model.embed_tokens.weight"), DType::kBF16, 1000, 32, version, expected.data());
        EXPECT_EQ(head, table);
        EXPECT_EQ(table, expected);
    }
}

TEST(BuiltinModel, UnknownNamesAreBadInput) {
    EXPECT_EQ(exit_code(open_model({"Qwen4", {}}).status().code()), kBadInput);
    EXPECT_EQ(exit_code(open_model({"no/such/path", {}}).status().code()), kBadInput);
    EXPECT_EQ(exit_code(open_model({"", {}}).status().code()), kBadInput);
}

}  // namespace
}  // namespace sluice::cli

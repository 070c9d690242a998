#include "runtime/services/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

namespace sluice {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string with_length(std::uint64_t length, const std::string& rest) {
    std::string out;
    for (int i = 0; i < 8; ++i) {
        out += static_cast<char>(length >> (8 * i));
    }
    return out + rest;
}

// A file as the format says, from a header and data written by hand.
std::string file_of(const std::string& header, const std::string& data = "") {
    return with_length(header.size(), header + data);
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Time of this thread alone: other tests may keep the machine busy.
double cpu_seconds() {
    timespec now = {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The error for a file; also that it is one line, quick and small, and that the path is in front.
std::string error_of(const std::string& file) {
    const double start = cpu_seconds();
    // Exactly sized heap memory, so that AddressSanitizer sees a byte too many.
    const std::vector<std::byte> exact(bytes_of(file).begin(), bytes_of(file).end());
    const auto contents = parse_safetensors(exact, "dir/x.safetensors");
    EXPECT_LT(cpu_seconds() - start, 1.0);
    if (contents.ok()) {
        return "no error";
    }
    EXPECT_EQ(contents.status().code(), StatusCode::kInvalidArgument);
    const std::string message = contents.status().message();
    EXPECT_THAT(message, StartsWith("dir/x.safetensors: "));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    EXPECT_LT(message.size(), 600u);
    return message.substr(std::strlen("dir/x.safetensors: "));
}

std::string error_of_tensor(const std::string& fields, const std::string& data = "12345678") {
    return error_of(file_of("{\"a\":{" + fields + "}}", data));
}

constexpr const char* kGood = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";

TEST(SafetensorsParseTest, AGoodFile) {
    const std::string file =
        file_of(R"(  {"__metadata__":{"format":"pt","k":""},"w":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},
        "b":{"data_offsets":[0,4],"shape":[],"dtype":"F32"},"empty":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]}}   )",
                "abcdefgh");
    const auto contents = parse_safetensors(bytes_of(file), "f");
    ASSERT_TRUE(contents.ok()) << contents.status().message();
    EXPECT_EQ(contents->metadata, (SafetensorsMetadata{{"format", "pt"}, {"k", ""}}));
    ASSERT_EQ(contents->tensors.size(), 3u);
    const auto& [b, empty, w] = std::tie(contents->tensors[0], contents->tensors[1], contents->tensors[2]);
    EXPECT_EQ(b.name, "b");
    EXPECT_EQ(b.dtype, DType::kF32);
    EXPECT_EQ(b.shape, Dims{});
    EXPECT_EQ(text_of(b.bytes), "abcd");
    EXPECT_EQ(empty.name, "empty");
    EXPECT_EQ(empty.shape, (Dims{0, 7}));
    EXPECT_TRUE(empty.bytes.empty());
    EXPECT_EQ(w.dtype, DType::kBF16);
    EXPECT_EQ(w.shape, (Dims{2, 1}));
    EXPECT_EQ(text_of(w.bytes), "efgh");
    EXPECT_TRUE(parse_safetensors(bytes_of(file_of("{}")), "f").ok());
    EXPECT_EQ(error_of_tensor(kGood), "no error");
}

TEST(SafetensorsParseTest, EveryDtypeIsKnown) {
    for (int d = 0; d < kDTypeCount; ++d) {
        const auto dtype = static_cast<DType>(d);
        const auto size = static_cast<std::size_t>(size_of(dtype));
        EXPECT_EQ(error_of_tensor("\"dtype\":\"" + std::string(safetensors_name(dtype)) +
                                      "\",\"shape\":[3],\"data_offsets\":[0," + std::to_string(3 * size) + "]",
                                  std::string(3 * size, 'x')),
                  "no error");
    }
}

TEST(SafetensorsParseTest, HeaderLengths) {
    EXPECT_THAT(error_of(""), StartsWith("header length: the file has 0 bytes"));
    EXPECT_THAT(error_of("1234"), StartsWith("header length: the file has 4 bytes"));
    EXPECT_THAT(error_of(with_length(0, "")), StartsWith("header length: 0 is too short"));
    EXPECT_THAT(error_of(with_length(0, "{}")), StartsWith("header length: 0 is too short"));
    EXPECT_THAT(error_of(with_length(1, "{}")), StartsWith("header length: 1 is too short"));
    EXPECT_THAT(error_of(with_length(std::uint64_t{1} << 63, "{}")),
                StartsWith("header length: 9223372036854775808 is above"));
    for (std::uint64_t back = 0; back < 20; ++back) {  // Where length + 8 wraps around.
        EXPECT_THAT(error_of(with_length(~std::uint64_t{0} - back, "{}")),
                    AllOf(StartsWith("header length: 1844674407370955"), HasSubstr("is above")));
    }
    EXPECT_THAT(error_of(with_length(100'000'001, "{}")), HasSubstr("above the format's limit of 100000000"));
    EXPECT_THAT(error_of(with_length(100'000'000, "{}")),
                HasSubstr("goes past the end of the file, which has 10 bytes"));
    EXPECT_THAT(error_of(with_length(3, "{}")), HasSubstr("goes past the end of the file"));
    EXPECT_THAT(error_of(with_length(2, "")), HasSubstr("goes past the end of the file, which has 8 bytes"));
    EXPECT_EQ(error_of(with_length(2, "{}")), "no error");
}

TEST(SafetensorsParseTest, DataOffsets) {
    const auto with = [](const std::string& offsets) {
        return error_of_tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" + offsets);
    };
    EXPECT_THAT(with("[0]"), StartsWith("tensor 'a': data_offsets: 1 numbers"));
    EXPECT_THAT(with("[]"), StartsWith("tensor 'a': data_offsets: 0 numbers"));
    EXPECT_THAT(with("[0,8,8]"), StartsWith("tensor 'a': data_offsets: more than 2 numbers"));
    EXPECT_THAT(with("[8,0]"), StartsWith("tensor 'a': data_offsets: [8, 0] ends before it begins"));
    EXPECT_THAT(with("[0,9]"),
                StartsWith("tensor 'a': data_offsets: [0, 9] goes past the end of the data, which has 8 bytes"));
    EXPECT_THAT(with("[18446744073709551608,18446744073709551615]"), HasSubstr("goes past the end"));
    EXPECT_THAT(with("[0,18446744073709551616]"),
                AllOf(StartsWith("tensor 'a': data_offsets: found '18446744073709551616'"), HasSubstr("whole number")));
    EXPECT_THAT(with("[-8,0]"), StartsWith("tensor 'a': data_offsets: found -8, must be a whole number >= 0"));
    EXPECT_THAT(with("[0,8.0]"), StartsWith("tensor 'a': data_offsets: found '8.0', must be a whole number"));
    EXPECT_THAT(with("[0,1e1]"), StartsWith("tensor 'a': data_offsets: found '1e1', must be a whole number"));
    EXPECT_THAT(with("[0,\"8\"]"), StartsWith("tensor 'a': data_offsets: found the string '8'"));
    EXPECT_THAT(with("[0,[8]]"), StartsWith("tensor 'a': data_offsets: found an array"));
    EXPECT_THAT(with("[0,null]"), StartsWith("tensor 'a': data_offsets: found null"));
    EXPECT_THAT(with("8"), StartsWith("tensor 'a': data_offsets: found 8, must be an array"));
    EXPECT_THAT(with("{}"), StartsWith("tensor 'a': data_offsets: found an object, must be an array"));
}

TEST(SafetensorsParseTest, Shapes) {
    const auto with = [](const std::string& shape) {
        return error_of_tensor("\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":[0,8]");
    };
    EXPECT_THAT(with("[3]"),
                StartsWith("tensor 'a': shape: [3] of F32 takes 12 bytes, but data_offsets [0, 8] span 8"));
    EXPECT_THAT(with("[1]"), HasSubstr("takes 4 bytes"));
    EXPECT_THAT(with("[]"), HasSubstr("takes 4 bytes"));
    EXPECT_THAT(with("[0]"), HasSubstr("takes 0 bytes"));
    EXPECT_THAT(with("[4294967296,4294967296]"),
                StartsWith("tensor 'a': shape: [4294967296, 4294967296] has more bytes than fit"));
    EXPECT_THAT(with("[4611686018427387904]"), HasSubstr("more bytes than fit"));  // * 4 is 2^64: wraps to 0.
    EXPECT_THAT(with("[4611686018427387906]"), HasSubstr("more bytes than fit"));  // * 4 wraps to 8.
    EXPECT_THAT(with("[4294967296,4294967296,0]"), HasSubstr("more bytes than fit"));
    EXPECT_THAT(with("[9223372036854775808]"), StartsWith("tensor 'a': shape: size 9223372036854775808 does not fit"));
    EXPECT_THAT(with("[-2]"), StartsWith("tensor 'a': shape: found -2"));
    EXPECT_THAT(with("[2.0]"), StartsWith("tensor 'a': shape: found '2.0'"));
    EXPECT_THAT(with("2"), StartsWith("tensor 'a': shape: found 2, must be an array"));
    std::string many = "[2";
    for (int i = 0; i < 200; ++i) {
        many += ",1";
    }
    EXPECT_THAT(with(many + "]"), StartsWith("tensor 'a': shape: more than 64 dimensions"));
}

TEST(SafetensorsParseTest, Fields) {
    EXPECT_THAT(error_of_tensor(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"),
                StartsWith("tensor 'a': dtype: unknown dtype 'F33'"));
    EXPECT_THAT(error_of_tensor(R"("dtype":"bf16","shape":[4],"data_offsets":[0,8])"),
                HasSubstr("unknown dtype 'bf16'"));
    EXPECT_THAT(error_of_tensor(R"("dtype":7,"shape":[2],"data_offsets":[0,8])"),
                StartsWith("tensor 'a': dtype: found 7, must be a string"));
    EXPECT_THAT(error_of_tensor(R"("shape":[2],"data_offsets":[0,8])"), StartsWith("tensor 'a': dtype is missing"));
    EXPECT_THAT(error_of_tensor(R"("dtype":"F32","data_offsets":[0,8])"), StartsWith("tensor 'a': shape is missing"));
    EXPECT_THAT(error_of_tensor(R"("dtype":"F32","shape":[2])"), StartsWith("tensor 'a': data_offsets is missing"));
    EXPECT_THAT(error_of_tensor(""), StartsWith("tensor 'a': dtype is missing"));
    EXPECT_THAT(error_of_tensor(std::string(kGood) + ",\"shape\":[2]"), StartsWith("tensor 'a': shape comes twice"));
    EXPECT_THAT(error_of_tensor(std::string(kGood) + ",\"dtype\":\"F32\""),
                StartsWith("tensor 'a': dtype comes twice"));
    EXPECT_THAT(error_of_tensor(std::string(kGood) + ",\"data_offsets\":[0,8]"),
                StartsWith("tensor 'a': data_offsets comes twice"));
    EXPECT_THAT(error_of_tensor(std::string(kGood) + ",\"strides\":[1]"),
                StartsWith("tensor 'a': unknown field 'strides'"));
    EXPECT_THAT(error_of(file_of(R"({"a":[1]})")), StartsWith("tensor 'a': found an array, must be an object"));
    EXPECT_THAT(error_of(file_of(R"({"a":null})")), StartsWith("tensor 'a': found null, must be an object"));
    EXPECT_THAT(error_of(file_of(R"({"__metadata__":{"a":1}})")),
                StartsWith("__metadata__: key 'a': found 1, must be a string"));
    EXPECT_THAT(error_of(file_of(R"({"__metadata__":{"a":{}}})")),
                StartsWith("__metadata__: key 'a': found an object"));
    EXPECT_THAT(error_of(file_of(R"({"__metadata__":{"a":"1","a":"2"}})")),
                StartsWith("__metadata__: key 'a' comes twice"));
    EXPECT_THAT(error_of(file_of(R"({"__metadata__":{},"__metadata__":{}})")), StartsWith("__metadata__ comes twice"));
    EXPECT_THAT(error_of(file_of(R"({"__metadata__":[]})")),
                StartsWith("__metadata__: found an array, must be an object"));
}

TEST(SafetensorsParseTest, NamesAndLayoutOfSeveralTensors) {
    const auto two = [](const std::string& name, const std::string& first, const std::string& second,
                        const std::string& data) {
        return error_of(file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":" + first + "},\"" + name +
                                    "\":{\"dtype\":\"U8\",\"shape\":" + second + "}}",
                                data));
    };
    EXPECT_EQ(two("b", "[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[4,8]", "12345678"), "no error");
    EXPECT_EQ(two("b", "[4],\"data_offsets\":[4,8]", "[4],\"data_offsets\":[0,4]", "12345678"), "no error");
    EXPECT_THAT(two("a", "[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[4,8]", "12345678"),
                StartsWith("tensor 'a': the name comes twice"));
    EXPECT_THAT(two("\\u0061", "[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[4,8]", "12345678"),
                StartsWith("tensor 'a': the name comes twice"));
    EXPECT_THAT(two("b", "[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[3,7]", "1234567"),
                StartsWith("tensor 'b': data_offsets: begins at 3, inside the tensor before it, which ends at 4"));
    EXPECT_THAT(two("b", "[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[0,4]", "1234"),
                HasSubstr("inside the tensor before it"));
    EXPECT_THAT(two("b", "[4],\"data_offsets\":[0,4]", "[0],\"data_offsets\":[2,2]", "1234"),
                HasSubstr("inside the tensor before it"));
    EXPECT_THAT(
        two("b", "[4],\"data_offsets\":[0,4]", "[3],\"data_offsets\":[5,8]", "12345678"),
        StartsWith(
            "tensor 'b': data_offsets: begins at 5, leaving a hole after the tensor before it, which ends at 4"));
    EXPECT_THAT(two("b", "[3],\"data_offsets\":[1,4]", "[4],\"data_offsets\":[4,8]", "12345678"),
                StartsWith("tensor 'a': data_offsets: begins at 1, leaving a hole"));
    EXPECT_THAT(two("b", "[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[4,8]", "123456789"),
                StartsWith("data: 1 bytes after the last tensor"));
    EXPECT_THAT(two("b", "[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[4,8]", "1234567"),
                HasSubstr("goes past the end of the data, which has 7 bytes"));
    EXPECT_THAT(error_of(file_of("{}", "x")), StartsWith("data: 1 bytes after the last tensor"));
}

TEST(SafetensorsParseTest, WhatIsNoObject) {
    EXPECT_THAT(error_of(file_of("[]")), StartsWith("no valid JSON at byte 1"));
    EXPECT_THAT(error_of(file_of("null")), HasSubstr("where an object should start"));
    EXPECT_THAT(error_of(file_of("\"{}\"")), HasSubstr("where an object should start"));
    EXPECT_THAT(error_of(file_of("      ")), HasSubstr("where an object should start"));
    EXPECT_THAT(error_of(file_of("\xEF\xBB\xBF{}")), HasSubstr("where an object should start"));
    EXPECT_THAT(error_of(file_of("{}{}")), HasSubstr("no valid JSON at byte 3"));
    EXPECT_THAT(error_of(file_of("{} x")), HasSubstr("no valid JSON"));
    EXPECT_THAT(error_of(file_of("{\"a\"")), HasSubstr("no valid JSON"));
    EXPECT_THAT(error_of(file_of("{\"a\":{\"dtype\":\"F3")), HasSubstr("no valid JSON"));
    EXPECT_THAT(error_of(file_of(std::string("{}\0  ", 5))), AllOf(HasSubstr("at byte 3"), HasSubstr("a zero byte")));
    EXPECT_THAT(error_of(file_of("{\"a\nb\":1}")), HasSubstr("no valid JSON"));
}

TEST(SafetensorsParseTest, InvalidUtf8) {
    EXPECT_THAT(error_of(file_of("{\"\xFF\":{}}")), HasSubstr("no valid JSON"));
    EXPECT_THAT(error_of(file_of("{\"\xC0\xAF\":{}}")), HasSubstr("no valid JSON"));
    EXPECT_THAT(error_of(file_of("{\"\xED\xA0\x80\":{}}")), HasSubstr("no valid JSON"));
    EXPECT_THAT(error_of(file_of("{\"__metadata__\":{\"a\":\"\xE2\x82\"}}")), HasSubstr("no valid JSON"));
    EXPECT_THAT(error_of(file_of("{\"\\ud800\":{}}")), HasSubstr("no valid JSON"));
    EXPECT_EQ(error_of(file_of("{\"\xC3\xA9\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}")), "no error");
}

TEST(SafetensorsParseTest, DeepNesting) {
    const std::string deep(100'000, '[');
    EXPECT_THAT(error_of(file_of("{\"a\":" + deep)), StartsWith("tensor 'a': found an array"));
    EXPECT_THAT(error_of(file_of(deep)), HasSubstr("where an object should start"));
    std::string objects;
    for (int i = 0; i < 100'000; ++i) {
        objects += "{\"a\":";
    }
    EXPECT_THAT(error_of(file_of(objects)), StartsWith("tensor 'a': unknown field 'a'"));
    EXPECT_THAT(error_of(file_of("{\"__metadata__\":" + objects)), HasSubstr("found an object"));
    EXPECT_THAT(error_of_tensor("\"shape\":[" + deep), StartsWith("tensor 'a': shape: found an array"));
}

TEST(SafetensorsParseTest, TextFromTheFileCannotSpoilTheMessage) {
    EXPECT_THAT(error_of(file_of("{\"a\\nb\\u001b[2J\":1}")), StartsWith("tensor 'a?b?[2J': found 1"));
    EXPECT_THAT(error_of(file_of("{\"" + std::string(1'000'000, 'n') + "\":1}")), HasSubstr("nnn...'"));
    EXPECT_THAT(error_of(file_of("{\"" + std::string(1'000'000, 'n'))), HasSubstr("no valid JSON"));
    EXPECT_THAT(error_of_tensor("\"shape\":[" + std::string(1'000'000, '1') + "]"),
                HasSubstr("no valid JSON at byte 1000015, near '111"));
}

TEST(SafetensorsParseTest, CutAndAlteredFilesNeverCrash) {
    const std::string good = file_of(
        R"({"__metadata__":{"f":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
        std::string(32, 'x'));
    ASSERT_EQ(error_of(good), "no error");
    for (std::size_t length = 0; length < good.size(); ++length) {
        EXPECT_NE(error_of(good.substr(0, length)), "no error") << length;
    }
    std::mt19937_64 random(1);
    int refused = 0;
    for (int i = 0; i < 20'000; ++i) {
        std::string bad = good;
        for (std::uint64_t k = 0; k <= random() % 3; ++k) {
            bad[random() % (good.size() - 32)] =
                static_cast<char>(random() % 2 == 0 ? random() : "{}[]\",:0129e-"[random() % 13]);
        }
        refused += error_of(bad) != "no error" ? 1 : 0;
    }
    EXPECT_GT(refused, 15'000);
}

class SafetensorsFilesTest : public ::testing::Test {
protected:
    SafetensorsFilesTest() {
        std::string pattern = (fs::temp_directory_path() / "safetensors-XXXXXX").string();
        directory_ = ::mkdtemp(pattern.data());
    }
    ~SafetensorsFilesTest() override { fs::remove_all(directory_); }

    fs::path put(const std::string& name, const std::string& content) const {
        std::ofstream(directory_ / name, std::ios::binary) << content;
        return directory_ / name;
    }
    void index(const std::string& weight_map, const std::string& before = "") const {
        put("model.safetensors.index.json", "{" + before + "\"weight_map\":" + weight_map + "}");
    }
    static std::string shard(const std::vector<std::string>& names) {
        std::string header = "{";
        std::string data;
        for (const std::string& name : names) {
            header += (header.size() > 1 ? ",\"" : "\"") + name + R"(":{"dtype":"U8","shape":[3],"data_offsets":[)" +
                      std::to_string(data.size()) + "," + std::to_string(data.size() + 3) + "]}";
            data += (name + "...").substr(0, 3);
        }
        return file_of(header + "}", data);
    }
    std::string error(const fs::path& path) const {
        const double start = cpu_seconds();
        const auto reader = SafetensorsReader::open(path);
        EXPECT_LT(cpu_seconds() - start, 1.0);
        if (reader.ok()) {
            return "no error";
        }
        EXPECT_EQ(reader.status().code(), StatusCode::kInvalidArgument);
        std::string message = reader.status().message();
        EXPECT_THAT(message, StartsWith(directory_.string()));
        EXPECT_THAT(message, Not(HasSubstr("\n")));
        return message.substr(directory_.string().size());
    }

    fs::path directory_;
};

TEST_F(SafetensorsFilesTest, OneFile) {
    auto opened = SafetensorsReader::open(put("one.safetensors", shard({"b", "a", "c"})));
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    const SafetensorsReader reader = std::move(*opened);  // Views survive the move.
    ASSERT_EQ(reader.tensors().size(), 3u);
    EXPECT_EQ(reader.tensors()[0].name, "a");
    ASSERT_NE(reader.find("b"), nullptr);
    EXPECT_EQ(text_of(reader.find("b")->bytes), "b..");
    EXPECT_EQ(reader.find("d"), nullptr);
    EXPECT_EQ(reader.find(""), nullptr);
    EXPECT_EQ(reader.files(), std::vector<fs::path>{directory_ / "one.safetensors"});
}

TEST_F(SafetensorsFilesTest, WhatCannotBeOpened) {
    EXPECT_THAT(error(directory_ / "none.safetensors"), HasSubstr("/none.safetensors: cannot open: No such file"));
    EXPECT_THAT(error(put("empty.safetensors", "")), HasSubstr("header length: the file has 0 bytes"));
    EXPECT_THAT(error(put("four.safetensors", "abcd")), HasSubstr("header length: the file has 4 bytes"));
    EXPECT_THAT(error(put("eight.safetensors", std::string(8, '\xFF'))),
                HasSubstr("header length: 18446744073709551615"));
    ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
    EXPECT_THAT(error(directory_ / "pipe"), HasSubstr("no ordinary file"));
    fs::create_directory(directory_ / "sub");
    EXPECT_THAT(error(directory_ / "sub"),
                HasSubstr("/sub: has no .safetensors file and no model.safetensors.index.json"));
}

TEST_F(SafetensorsFilesTest, ShardsWithAnIndex) {
    put("model-1.safetensors", shard({"z", "b"}));
    put("model-2.safetensors", shard({"a", "m"}));
    put("consolidated.safetensors", shard({"a", "other"}));  // Not in the index: not read.
    index(
        R"({"a":"model-2.safetensors","b":"model-1.safetensors","m":"model-2.safetensors","z":"model-1.safetensors"})",
        R"("metadata":{"total_size":12,"x":[1,2.5,-1,{"y":null}],"t":true,"s":"s"},)");
    const auto reader = SafetensorsReader::open(directory_);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    ASSERT_EQ(reader->tensors().size(), 4u);
    std::string names;
    for (const SafetensorsTensor& tensor : reader->tensors()) {
        names += tensor.name;
        EXPECT_EQ(text_of(tensor.bytes), tensor.name + "..");
    }
    EXPECT_EQ(names, "abmz");
    EXPECT_EQ(reader->files().size(), 2u);
}

TEST_F(SafetensorsFilesTest, ShardsWithoutAnIndex) {
    put("x1.safetensors", shard({"z", "b"}));
    put("x2.safetensors", shard({"a"}));
    put("config.json", "{}");
    const auto reader = SafetensorsReader::open(directory_);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    EXPECT_EQ(reader->tensors().size(), 3u);
    put("x3.safetensors", shard({"y", "b"}));
    EXPECT_THAT(error(directory_), HasSubstr("tensor 'b': is in 'x1.safetensors' and in 'x3.safetensors'"));
}

TEST_F(SafetensorsFilesTest, ShardsMayBeLinksToFilesElsewhere) {
    fs::create_directory(directory_ / "blobs");
    fs::create_directory(directory_ / "snapshot");
    put("blobs/1234", shard({"a"}));
    fs::create_symlink("../blobs/1234", directory_ / "snapshot" / "m.safetensors");
    put("snapshot/model.safetensors.index.json", R"({"weight_map":{"a":"m.safetensors"}})");
    const auto reader = SafetensorsReader::open(directory_ / "snapshot");
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    EXPECT_NE(reader->find("a"), nullptr);
}

TEST_F(SafetensorsFilesTest, IndexesThatDoNotFit) {
    put("s1.safetensors", shard({"a", "b"}));
    put("s2.safetensors", shard({"c"}));
    const auto with = [this](const std::string& weight_map) {
        index(weight_map);
        return error(directory_);
    };
    EXPECT_EQ(with(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})"), "no error");
    EXPECT_THAT(with(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s3.safetensors"})"),
                HasSubstr("index.json: weight_map: names 's3.safetensors', which is not in the directory"));
    EXPECT_THAT(with(R"({"a":"s1.safetensors","c":"s2.safetensors"})"),
                HasSubstr("tensor 'b' of 's1.safetensors' is not in it"));
    EXPECT_THAT(with(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors","d":"s2.safetensors"})"),
                HasSubstr("tensor 'd' is not in 's2.safetensors'"));
    EXPECT_THAT(with(R"({"0":"s1.safetensors","a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})"),
                HasSubstr("tensor '0' is not in 's1.safetensors'"));
    EXPECT_THAT(with(R"({"a":"s1.safetensors","b":"s2.safetensors","c":"s2.safetensors"})"),
                HasSubstr("tensor 'b' is not in 's2.safetensors'"));
    EXPECT_THAT(with(R"({"a":"s1.safetensors","a":"s1.safetensors"})"),
                HasSubstr("weight_map: tensor 'a': the name comes twice"));
    EXPECT_THAT(with(R"({})"), "no error");
    put("s2.safetensors", shard({"c", "a"}));
    EXPECT_THAT(with(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})"),
                HasSubstr("tensor 'a': is in 's1.safetensors' and in 's2.safetensors'"));
    put("s2.safetensors", "damaged");
    EXPECT_THAT(with(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})"),
                HasSubstr("/s2.safetensors: header length: the file has 7"));
}

TEST_F(SafetensorsFilesTest, PathsOutsideTheDirectory) {
    fs::create_directory(directory_ / "sub");
    put("out.safetensors", shard({"a"}));
    for (const std::string& file :
         {std::string("../out.safetensors"), (directory_ / "out.safetensors").string(), std::string(".."),
          std::string("."), std::string(""), std::string("x/../../out.safetensors"), std::string("a\\u0000b")}) {
        put("sub/model.safetensors.index.json", "{\"weight_map\":{\"a\":\"" + file + "\"}}");
        EXPECT_THAT(error(directory_ / "sub"), HasSubstr("is no file name inside the directory")) << file;
    }
}

TEST_F(SafetensorsFilesTest, MalformedIndexes) {
    put("s.safetensors", shard({"a"}));
    const auto with = [this](const std::string& text) {
        put("model.safetensors.index.json", text);
        return error(directory_);
    };
    EXPECT_THAT(with(""), HasSubstr("index.json: no valid JSON"));
    EXPECT_THAT(with("[]"), HasSubstr("no valid JSON"));
    EXPECT_THAT(with("{}"), HasSubstr("weight_map is missing"));
    EXPECT_THAT(with("{\"weight_map\":{},\"weight_map\":{}}"), HasSubstr("weight_map comes twice"));
    EXPECT_THAT(with("{\"weight_map\":[]}"), HasSubstr("weight_map: found an array, must be an object"));
    EXPECT_THAT(with("{\"weight_map\":3}"), HasSubstr("weight_map: found 3, must be an object"));
    EXPECT_THAT(with("{\"weight_map\":{\"a\":3}}"), HasSubstr("weight_map: tensor 'a': found 3, must be a file name"));
    EXPECT_THAT(with("{\"weight_map\":{\"a\":{\"b\":\"s.safetensors\"}}}"),
                HasSubstr("weight_map: tensor 'a': found an object"));
    EXPECT_THAT(with("{\"weight_map\":{\"a\":[\"s.safetensors\"]}}"),
                HasSubstr("weight_map: tensor 'a': found an array"));
    EXPECT_THAT(with("{\"weight_map\":{\"\xFF\":\"s\"}}"), HasSubstr("no valid JSON"));
    EXPECT_THAT(with("{\"metadata\":" + std::string(100'000, '[')), HasSubstr("nested more than 64 deep"));
    EXPECT_THAT(with("{\"weight_map\":" + std::string(100'000, '{')), HasSubstr("index.json: "));
}

TEST_F(SafetensorsFilesTest, WhatIsWrittenIsReadAgain) {
    std::mt19937_64 random(1);
    std::vector<std::vector<std::byte>> data;
    std::vector<SafetensorsTensor> tensors;
    for (int i = 0; i < 60; ++i) {
        const auto dtype = static_cast<DType>(i % kDTypeCount);
        Dims shape;
        for (std::uint64_t d = 0; d < random() % 4; ++d) {
            shape.push_back(static_cast<std::int64_t>(random() % 5));
        }
        data.emplace_back(static_cast<std::size_t>(num_elements(shape) * size_of(dtype)));
        for (std::byte& byte : data.back()) {
            byte = static_cast<std::byte>(random());
        }
        tensors.push_back(
            {"t" + std::to_string(i * 7 % 60) + (i == 3 ? "\"\\\n\xC3\xA9" : ""), dtype, shape, data.back()});
    }
    const SafetensorsMetadata metadata{{"version", "3"}, {"layout", "tp=2,\"x\""}};
    const fs::path path = directory_ / "out.safetensors";
    put("out.safetensors", "replaced");
    const Status status = write_safetensors(path, tensors, metadata);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto reader = SafetensorsReader::open(path);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    EXPECT_EQ(reader->metadata(), metadata);
    EXPECT_EQ(reader->tensors().size(), tensors.size());
    for (const SafetensorsTensor& tensor : tensors) {
        const SafetensorsTensor* read = reader->find(tensor.name);
        ASSERT_NE(read, nullptr) << tensor.name;
        EXPECT_EQ(read->dtype, tensor.dtype);
        EXPECT_EQ(read->shape, tensor.shape);
        EXPECT_EQ(text_of(read->bytes), text_of(tensor.bytes));
        EXPECT_EQ(
            reinterpret_cast<std::uintptr_t>(read->bytes.data()) % static_cast<std::uintptr_t>(size_of(tensor.dtype)),
            0u);
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 1)
        << "no temporary file is left";
}

TEST_F(SafetensorsFilesTest, TheBytesOfAWrittenFile) {
    const std::string a = "12345678";
    const std::string b = "ab";
    const std::vector<SafetensorsTensor> tensors = {{"b", DType::kU8, Dims{2}, bytes_of(b)},
                                                    {"a", DType::kF32, Dims{1, 2}, bytes_of(a)}};
    ASSERT_TRUE(write_safetensors(directory_ / "f", tensors, {{"k", "v"}}).ok());
    std::ifstream in(directory_ / "f", std::ios::binary);
    const std::string written((std::istreambuf_iterator<char>(in)), {});
    std::string header =
        R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}})";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    EXPECT_EQ(written, file_of(header, a + b));
    ASSERT_TRUE(write_safetensors(directory_ / "g", {}, {}).ok());
    EXPECT_EQ(fs::file_size(directory_ / "g"), 16u);
    EXPECT_EQ(error(directory_ / "g"), "no error");
}

TEST_F(SafetensorsFilesTest, WhatIsNotWritten) {
    const std::string data = "12345678";
    const auto refused = [&](const std::vector<SafetensorsTensor>& tensors, const SafetensorsMetadata& metadata = {}) {
        const Status status = write_safetensors(directory_ / "no.safetensors", tensors, metadata);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_TRUE(fs::is_empty(directory_));
        return status.message();
    };
    EXPECT_THAT(refused({{"a", DType::kF32, Dims{3}, bytes_of(data)}}),
                HasSubstr("tensor 'a': shape [3] of f32 does not take the given 8 bytes"));
    EXPECT_THAT(refused({{"a", DType::kF32, Dims{-2}, bytes_of(data)}}), HasSubstr("tensor 'a'"));
    EXPECT_THAT(refused({{"a", DType::kF32, Dims{2}, bytes_of(data)}, {"a", DType::kU8, Dims{8}, bytes_of(data)}}),
                HasSubstr("tensor 'a': the name comes twice"));
    EXPECT_THAT(refused({{"\xFF", DType::kF32, Dims{2}, bytes_of(data)}}), HasSubstr("UTF-8"));
    EXPECT_THAT(refused({}, {{"k", "\xC0"}}), HasSubstr("UTF-8"));
    const Status status = write_safetensors(directory_ / "none" / "f", {}, {});
    EXPECT_THAT(status.message(), HasSubstr("none/f: cannot write: No such file or directory"));
    fs::create_directory(directory_ / "d");
    EXPECT_THAT(write_safetensors(directory_ / "d", {}, {}).message(), HasSubstr("/d: cannot write: Is a directory"));
    EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 1);
}

TEST_F(SafetensorsFilesTest, AFailedWriteLeavesTheOldFile) {
    const fs::path path = put("old.safetensors", shard({"a"}));
    rlimit former = {};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &former), 0);
    const rlimit small{4096, former.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const std::string data(10'000, 'x');
    const std::vector<SafetensorsTensor> tensors = {{"big", DType::kU8, Dims{10'000}, bytes_of(data)}};
    const Status status = write_safetensors(path, tensors, {});
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &former), 0);
    std::signal(SIGXFSZ, handler);
    EXPECT_THAT(status.message(), HasSubstr("old.safetensors: cannot write: File too large"));
    const auto reader = SafetensorsReader::open(path);
    ASSERT_TRUE(reader.ok());
    EXPECT_NE(reader->find("a"), nullptr);
    EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace sluice

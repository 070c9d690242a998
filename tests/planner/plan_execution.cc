#include "tests/planner/plan_execution.h"

#include "planner/builtin_models.h"

#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

namespace sluice::test {
namespace {

constexpr unsigned char kPoison = 0xCD;

Bytes tensor_bytes(std::size_t tensor, std::int64_t size) {
    Bytes out(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < out.size(); ++i) {
        std::uint64_t x = (tensor + 1) * 0x9E3779B97F4A7C15ULL + i;
        x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ULL;
        // Never the poison's value, nor bits of a NaN in an exponent: the high bit of each byte pair stays clear.
        out[i] = static_cast<unsigned char>((x >> 29) & 0x3F);
    }
    return out;
}

std::vector<Bytes> all_bytes(const Catalogue& catalogue) {
    std::vector<Bytes> out;
    for (std::size_t t = 0; t < catalogue.size(); ++t) {
        out.push_back(tensor_bytes(t, catalogue.tensors()[t].bytes()));
    }
    return out;
}

// One element from one dtype to another: only the pairs that the tests use.
void convert(const unsigned char* src, DType from, unsigned char* dst, DType to) {
    std::uint32_t bits = 0;
    if (from == DType::kBF16 && to == DType::kF32) {
        std::uint16_t half = 0;
        std::memcpy(&half, src, 2);
        bits = static_cast<std::uint32_t>(half) << 16;
        std::memcpy(dst, &bits, 4);
    } else if (from == DType::kF32 && to == DType::kBF16) {
        std::memcpy(&bits, src, 4);
        const std::uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
        const auto half = static_cast<std::uint16_t>(rounded >> 16);
        std::memcpy(dst, &half, 2);
    } else {
        ADD_FAILURE() << "no conversion from " << to_string(from) << " to " << to_string(to);
    }
}

std::vector<Bytes> poisoned(const Demand& demand) {
    std::vector<Bytes> out;
    for (const Parameter& p : demand.parameters) {
        out.emplace_back(static_cast<std::size_t>(p.bytes()), kPoison);
    }
    return out;
}

void apply(const StridedCopy& copy, DType from, DType to, const Bytes& source, Bytes& destination, Bytes* writes) {
    const std::int64_t item = from == to ? copy.item : size_of(to);
    for_each_item(copy, [&](std::int64_t src, std::int64_t dst) {
        if (src < 0 || src + copy.item > static_cast<std::int64_t>(source.size()) || dst < 0 ||
            dst + item > static_cast<std::int64_t>(destination.size())) {
            ADD_FAILURE() << "item at " << src << " -> " << dst << " leaves its memory";
            return;
        }
        if (from == to) {
            std::memcpy(&destination[static_cast<std::size_t>(dst)], &source[static_cast<std::size_t>(src)],
                        static_cast<std::size_t>(item));
        } else {
            convert(&source[static_cast<std::size_t>(src)], from, &destination[static_cast<std::size_t>(dst)], to);
        }
        for (std::int64_t b = 0; writes != nullptr && b < item; ++b) {
            ++(*writes)[static_cast<std::size_t>(dst + b)];
        }
    });
}

}  // namespace

SmallModel small_model(const std::string& name, const std::vector<std::pair<std::string, std::string>>& fields) {
    auto file = builtin_model(name);
    EXPECT_TRUE(file.ok()) << file.status().message();
    ModelConfig config = file->config;
    for (const auto& [key, value] : fields) {
        const Status set = config.set(key, value);
        EXPECT_TRUE(set.ok()) << set.message();
    }
    auto catalogue = checkpoint_catalogue(config);
    EXPECT_TRUE(catalogue.ok()) << catalogue.status().message();
    std::vector<Bytes> tensors = all_bytes(*catalogue);
    return {std::move(config), std::move(*catalogue), std::move(tensors)};
}

SmallModel small_model(const std::string& name) {
    using Fields = std::vector<std::pair<std::string, std::string>>;
    const Fields dense = {{"num_hidden_layers", "3"},   {"hidden_size", "64"}, {"num_attention_heads", "8"},
                          {"num_key_value_heads", "2"}, {"vocab_size", "250"}, {"intermediate_size", "96"}};
    const auto dense_with = [&](const Fields& more) {
        Fields out = dense;
        out.insert(out.end(), more.begin(), more.end());
        return out;
    };
    const std::map<std::string, Fields> fields = {
        {"Qwen3-30B-A3B", dense_with({{"head_dim", "8"}, {"num_experts", "8"}, {"moe_intermediate_size", "32"}})},
        {"Qwen3-0.6B", dense_with({{"head_dim", "8"}})},
        {"Qwen2.5-7B", dense},
        {"Llama-3.1-8B", dense},
        {"Kimi-K2",
         {{"num_hidden_layers", "3"},
          {"hidden_size", "64"},
          {"num_attention_heads", "8"},
          {"num_key_value_heads", "8"},
          {"vocab_size", "256"},
          {"intermediate_size", "96"},
          {"moe_intermediate_size", "32"},
          {"n_routed_experts", "8"},
          {"q_lora_rank", "24"},
          {"kv_lora_rank", "16"},
          {"qk_nope_head_dim", "8"},
          {"qk_rope_head_dim", "4"},
          {"v_head_dim", "8"},
          {"first_k_dense_replace", "1"}}},
        {"GLM-4.5-Air", dense_with({{"moe_intermediate_size", "32"}, {"n_routed_experts", "8"}, {"head_dim", "8"}})},
        {"Mixtral-8x7B", dense_with({{"num_local_experts", "8"}})},
        {"Llama-4-Scout-17B-16E",
         {{"num_hidden_layers", "2"},
          {"hidden_size", "64"},
          {"num_attention_heads", "8"},
          {"num_key_value_heads", "8"},
          {"head_dim", "8"},
          {"vocab_size", "256"},
          {"intermediate_size", "32"},
          {"num_local_experts", "8"},
          {"vision_config.hidden_size", "32"},
          {"vision_config.intermediate_size", "128"},
          {"vision_config.num_hidden_layers", "2"},
          {"vision_config.projector_input_dim", "64"},
          {"vision_config.projector_output_dim", "64"},
          {"vision_config.vision_output_dim", "64"}}},
        {"gpt-oss-20b",
         {{"num_hidden_layers", "2"},
          {"hidden_size", "64"},
          {"num_attention_heads", "8"},
          {"num_key_value_heads", "8"},
          {"head_dim", "8"},
          {"vocab_size", "256"},
          {"intermediate_size", "64"},
          {"num_local_experts", "8"}}},
    };
    return small_model(name, fields.at(name));
}

std::vector<std::pair<std::string, SmallModel>> small_models() {
    std::vector<std::pair<std::string, SmallModel>> out;
    for (const char* name : {"Qwen3-30B-A3B", "Qwen3-0.6B", "Qwen2.5-7B", "Llama-3.1-8B", "Kimi-K2", "GLM-4.5-Air",
                             "Mixtral-8x7B", "Llama-4-Scout-17B-16E", "gpt-oss-20b"}) {
        out.emplace_back(name, small_model(name));
    }
    return out;
}

SmallModel with_bytes(const ModelConfig& config, const Catalogue& catalogue) {
    return {config, catalogue, all_bytes(catalogue)};
}

SmallModel hand_made(std::vector<CatalogueTensor> tensors) {
    auto config = ModelConfig::create({{"hidden_size", 8}}, "HandMade");
    auto catalogue = Catalogue::create(std::move(tensors), 1);
    EXPECT_TRUE(config.ok() && catalogue.ok());
    std::vector<Bytes> bytes = all_bytes(*catalogue);
    return {std::move(*config), std::move(*catalogue), std::move(bytes)};
}

OwnerMemory fill_owner(const SmallModel& model, const Ownership& owner) {
    OwnerMemory out;
    for (const std::int64_t bytes : owner.segment_bytes) {
        out.segments.emplace_back(static_cast<std::size_t>(bytes), kPoison);
    }
    for (std::size_t group = 0; group < owner.gathered_bytes.size(); ++group) {
        out.gathered[static_cast<GroupId>(group)].assign(static_cast<std::size_t>(owner.gathered_bytes[group]),
                                                         kPoison);
    }
    for (const OwnedRegion& region : owner.regions) {
        const CatalogueTensor& tensor = model.catalogue[region.tensor];
        const StridedCopy copy = region_copy(region, tensor.shape, size_of(tensor.dtype));
        Bytes& memory = region.segment == kGatheredSegment ? out.gathered[tensor.group]
                                                           : out.segments[static_cast<std::size_t>(region.segment)];
        apply(copy, tensor.dtype, tensor.dtype, model.tensors[static_cast<std::size_t>(region.tensor)], memory,
              nullptr);
    }
    return out;
}

const Bytes& segment_of(const OwnerMemory& memory, SegmentId segment, GroupId group) {
    return segment == kGatheredSegment ? memory.gathered.at(group)
                                       : memory.segments.at(static_cast<std::size_t>(segment));
}

std::vector<Bytes> expected_parameters(const SmallModel& model, const Demand& demand) {
    std::vector<Bytes> out = poisoned(demand);
    for (const CopyRecord& record : demand.records) {
        apply(record.copy, record.source_dtype, record.parameter_dtype,
              model.tensors[static_cast<std::size_t>(record.tensor)], out[static_cast<std::size_t>(record.parameter)],
              nullptr);
    }
    return out;
}

std::vector<Bytes> execute(const Route& route, const Demand& demand, const std::vector<OwnerMemory>& owners,
                           std::int64_t chunk_bytes) {
    std::vector<Bytes> out = poisoned(demand);
    std::vector<Bytes> writes;
    for (const Bytes& parameter : out) {
        writes.emplace_back(parameter.size(), 0);
    }
    for (const Chunk& chunk : route.chunks) {
        std::int64_t bytes = 0;
        std::tuple<std::int64_t, std::int64_t, ParameterId, std::int64_t> last{-2, -1, -1, -1};
        for (const Piece& piece : chunk.pieces) {
            const bool direct = chunk.path == Path::kDirect;
            const std::tuple<std::int64_t, std::int64_t, ParameterId, std::int64_t> here{
                direct ? piece.segment : 0, direct ? piece.copy.src_offset : 0, piece.parameter, piece.copy.dst_offset};
            EXPECT_LT(last, here)
                << "pieces must lie in the order of their destinations; direct ones in that of their sources";
            last = here;
            EXPECT_EQ(piece.copy, coalesce(piece.copy, piece.converts())) << "pieces must be coalesced";
            EXPECT_FALSE(size_of(piece.source_dtype) > size_of(piece.parameter_dtype) && chunk.path == Path::kDirect);
            bytes += piece.wire_bytes();
            apply(piece.copy, piece.source_dtype, piece.parameter_dtype,
                  segment_of(owners.at(static_cast<std::size_t>(chunk.owner)), piece.segment, chunk.group),
                  out[static_cast<std::size_t>(piece.parameter)], &writes[static_cast<std::size_t>(piece.parameter)]);
        }
        EXPECT_EQ(bytes, chunk.wire_bytes);
        EXPECT_LE(bytes, chunk_bytes);
        EXPECT_GT(bytes, 0);
    }
    for (std::size_t p = 0; p < out.size(); ++p) {
        for (std::size_t i = 0; i < out[p].size(); ++i) {
            if (writes[p][i] > 1 || (writes[p][i] == 0) != (out[p][i] == kPoison)) {
                ADD_FAILURE() << demand.parameters[p].name << " byte " << i << " written " << int{writes[p][i]}
                              << " times";
                break;
            }
        }
    }
    return out;
}

}  // namespace sluice::test

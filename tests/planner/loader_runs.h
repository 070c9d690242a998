#pragma once

#include "planner/builtin_models.h"
#include "planner/coverage.h"
#include "planner/dry_run.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

/// Dry runs without bytes, and what they recorded as text.
namespace sluice::test {

struct Model {
    ModelConfig config;
    Catalogue catalogue;
};

inline Model make_model(ModelConfig config, WeightForm form = WeightForm::kCheckpoint) {
    Catalogue catalogue = checkpoint_catalogue(config, form).value();
    return {std::move(config), std::move(catalogue)};
}

/// A model of the catalogues with its first `layers` layers.
inline Model model(const char* name, int layers, WeightForm form = WeightForm::kCheckpoint) {
    ModelConfig config = builtin_model(name).value().config;
    EXPECT_TRUE(config.set("num_hidden_layers", std::to_string(layers)).ok());
    return make_model(std::move(config), form);
}

inline Model llama(std::int64_t hidden, std::int64_t heads, std::int64_t kv, std::int64_t dim, std::int64_t vocab) {
    return make_model(ModelConfig::create({{"hidden_size", hidden},
                                           {"intermediate_size", 2 * hidden},
                                           {"num_hidden_layers", 1},
                                           {"num_attention_heads", heads},
                                           {"num_key_value_heads", kv},
                                           {"head_dim", dim},
                                           {"vocab_size", vocab},
                                           {"tie_word_embeddings", false}},
                                          "LlamaForCausalLM")
                          .value());
}

inline std::string range_text(const Dims& shape, std::int64_t first, std::int64_t last) {
    std::string out;
    Dims a(shape.size(), 0);
    Dims b(shape.size(), 0);
    for (std::size_t d = shape.size(); d-- > 0;) {
        a[d] = first % shape[d];
        b[d] = last % shape[d];
        first /= shape[d];
        last /= shape[d];
    }
    for (std::size_t d = 0; d < shape.size(); ++d) {
        out += (d == 0 ? "" : ",") + std::to_string(a[d]) + "-" + std::to_string(b[d]);
    }
    return out;
}

/// The records of a parameter as "q_proj.weight 5120-6143,0-4095 -> 0-1023,0-4095" (first and last element of both
/// sides).
inline std::vector<std::string> slices(const Model& m, const Demand& demand, const std::string& parameter) {
    std::vector<std::string> out;
    for (const CopyRecord& record : demand.records) {
        const Parameter& target = demand.parameters[static_cast<std::size_t>(record.parameter)];
        if (!target.name.ends_with(parameter)) {
            continue;
        }
        const CatalogueTensor& tensor = m.catalogue[record.tensor];
        std::int64_t source_last = record.copy.src_offset;
        std::int64_t last = record.copy.dst_offset;
        for (std::size_t d = 0; d < record.copy.sizes.size(); ++d) {
            source_last += (record.copy.sizes[d] - 1) * record.copy.src_strides[d];
            last += (record.copy.sizes[d] - 1) * record.copy.dst_strides[d];
        }
        const std::int64_t in = size_of(record.source_dtype);
        const std::int64_t to = size_of(record.parameter_dtype);
        std::string name = tensor.name;
        const std::size_t layer = name.find("layers.0.");
        name = layer == std::string::npos ? name : name.substr(layer + 9);
        out.push_back(name + " " + range_text(tensor.shape, record.copy.src_offset / in, source_last / in) + " -> " +
                      range_text(target.shape, record.copy.dst_offset / to, last / to));
    }
    return out;
}

inline Dims shape_of(const Demand& demand, const std::string& parameter) {
    for (const Parameter& p : demand.parameters) {
        if (p.name.ends_with(parameter)) {
            return p.shape;
        }
    }
    ADD_FAILURE() << "no parameter " << parameter;
    return {};
}

inline std::int64_t pulled_bytes(const Model& m, const Demand& demand, const std::string& tensor) {
    std::int64_t bytes = 0;
    for (const CopyRecord& record : demand.records) {
        bytes += m.catalogue[record.tensor].name.ends_with(tensor) ? record.copy.bytes() : 0;
    }
    return bytes;
}

inline Demand run(const Model& m, const WorkerLayout& layout, int rank) {
    Result<Demand> demand = dry_run(m.catalogue, m.config, layout, rank);
    EXPECT_TRUE(demand.ok()) << demand.status().message();
    EXPECT_TRUE(prove_coverage(*demand).status.ok()) << prove_coverage(*demand).status.message();
    return std::move(demand).value();
}

inline std::string refusal(const Model& m, const WorkerLayout& layout, int rank = 0) {
    const Result<Demand> demand = dry_run(m.catalogue, m.config, layout, rank);
    if (demand.ok()) {
        ADD_FAILURE() << "not refused";
        return "";
    }
    EXPECT_EQ(demand.status().code(), StatusCode::kPlanRefused);
    return demand.status().message();
}

}  // namespace sluice::test

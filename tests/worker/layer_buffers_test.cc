// The ring of layer buffers: which layer lies where, and what cannot be buffered.
#include "worker/layer_buffers.h"

#include "planner/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice::test {
namespace {

/// Layers with two parameters of `rows` and 2 * `rows` bytes, one tensor each, pulled in the order of `order`.
struct Model {
    Catalogue catalogue;
    Demand demand;
    Route route;
    ParameterStore store;
};

Model model_of(const std::vector<int>& rows, const std::vector<int>& order) {
    std::vector<CatalogueTensor> tensors;
    for (std::size_t layer = 0; layer < rows.size(); ++layer) {
        for (const int part : {1, 2}) {
            tensors.push_back({"model.layers." + std::to_string(layer) + ".part" + std::to_string(part) + ".weight",
                               DType::kU8,
                               {part * rows[layer]},
                               0,
                               ""});
        }
    }
    Model model{*Catalogue::create(tensors, static_cast<int>(rows.size())), {}, {}, {}};
    for (std::size_t i = 0; i < model.catalogue.size(); ++i) {
        const CatalogueTensor& tensor = model.catalogue[static_cast<TensorId>(i)];
        model.demand.parameters.push_back({tensor.name, tensor.dtype, tensor.shape});
        CopyRecord record;
        record.tensor = static_cast<TensorId>(i);
        record.parameter = static_cast<ParameterId>(i);
        record.copy.item = tensor.bytes();
        model.demand.records.push_back(record);
        model.store.places.push_back(ParameterStore::in_layer_buffer());
    }
    for (const int group : order) {
        model.route.chunks.emplace_back().group = group;
    }
    return model;
}

Result<LayerBuffers> make(const Model& model, int in_flight) {
    return LayerBuffers::create(model.catalogue, model.demand, model.route, model.store, in_flight, nullptr);
}

TEST(LayerBuffersTest, LayersTakeTheBuffersInTurnInTheOrderOfTheRoute) {
    // As two stages interleave: layers 0 2 1 3, each in several chunks.
    const Model model = model_of({10, 700, 20, 30}, {1, 1, 3, 3, 1, 2, 4, 4});
    const auto buffers = make(model, 2);
    ASSERT_TRUE(buffers.ok()) << buffers.status().message();
    EXPECT_EQ(buffers->groups(), (std::vector<GroupId>{1, 3, 2, 4}));
    EXPECT_EQ(buffers->count(), 2U);
    EXPECT_EQ(buffers->bytes(), 2 * (768 + 1536)) << "two of the largest layer, aligned";
    const auto at = buffers->addresses();
    EXPECT_EQ(at[0], at[2]) << "layers 0 and 1 share the first buffer";
    EXPECT_EQ(at[4], at[6]) << "layers 2 and 3 the second one";
    EXPECT_EQ(at[4] - at[0], 768 + 1536);
    EXPECT_EQ(at[3] - at[2], 768);
    EXPECT_EQ(buffers->place_of(2), std::optional<std::size_t>(2));
    EXPECT_EQ(buffers->place_of(0), std::nullopt);
    EXPECT_THAT(buffers->parameters_of(1), testing::ElementsAre(4, 5));
}

TEST(LayerBuffersTest, NothingBufferedTakesNothing) {
    Model model = model_of({10}, {1});
    model.store.places = {{0, 0}, {0, 16}};
    const auto buffers = make(model, 4);
    ASSERT_TRUE(buffers.ok());
    EXPECT_EQ(buffers->count(), 0U);
    EXPECT_EQ(buffers->bytes(), 0);
    EXPECT_TRUE(buffers->groups().empty());
}

TEST(LayerBuffersTest, AParameterWithoutElementsNeedsNoBuffer) {
    Model model = model_of({10, 10}, {1, 2});
    model.demand.parameters[0].shape = {0};
    model.demand.records.erase(model.demand.records.begin());
    const auto buffers = make(model, 1);
    ASSERT_TRUE(buffers.ok()) << buffers.status().message();
    EXPECT_EQ(buffers->addresses()[0], nullptr);
    EXPECT_THAT(buffers->parameters_of(0), testing::ElementsAre(1));
}

TEST(LayerBuffersTest, WhatCannotBeBufferedIsRefusedByName) {
    const auto refused = [](const Model& model, int in_flight, const std::string& why) {
        const auto buffers = make(model, in_flight);
        EXPECT_EQ(buffers.status().code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(buffers.status().message(), testing::HasSubstr(why));
    };
    refused(model_of({10}, {1}), 0, "0 layers in flight");
    Model two_layers = model_of({10, 10}, {1, 2});
    two_layers.demand.records[2].parameter = 0;
    refused(two_layers, 1,
            "parameter model.layers.0.part1.weight cannot land in a layer buffer: it has slices of more");
    Model filled = model_of({10}, {1});
    filled.demand.fills.push_back({1, {}});
    refused(filled, 1, "parameter model.layers.0.part2.weight cannot land in a layer buffer: the loader fills");
    Model unread = model_of({10}, {1});
    unread.demand.records.pop_back();
    refused(unread, 1, "parameter model.layers.0.part2.weight cannot land in a layer buffer: nothing is copied");
}

}  // namespace
}  // namespace sluice::test

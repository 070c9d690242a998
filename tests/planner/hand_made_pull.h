#pragma once

#include "planner/recording_tensor.h"
#include "planner/router.h"
#include "tests/planner/plan_execution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// Small plans of hand-made tensors, owners and loaders, carried out on bytes.
namespace sluice::test {

/// A rank that keeps whole tensors, one after the other, each row-major.
inline Ownership owner_of_whole(const Catalogue& catalogue, const std::vector<std::string>& names) {
    Ownership out;
    std::int64_t offset = 0;
    for (const std::string& name : names) {
        const TensorId id = catalogue.find(name).value();
        const CatalogueTensor& tensor = catalogue[id];
        out.regions.push_back({id, Dims(tensor.shape.size(), 0), tensor.shape, 0, offset,
                               contiguous_strides(tensor.shape, size_of(tensor.dtype))});
        offset += tensor.bytes();
    }
    std::sort(out.regions.begin(), out.regions.end(),
              [](const OwnedRegion& a, const OwnedRegion& b) { return a.tensor < b.tensor; });
    out.segment_bytes = {offset};
    return out;
}

/// What `load` records.
inline Demand record(const Catalogue& catalogue, const std::function<void(Recorder&)>& load) {
    Recorder recorder(catalogue);
    load(recorder);
    return recorder.take_demand();
}

/// The plan of one worker.
inline Result<Plan> plan_of(const SmallModel& model, const std::vector<Ownership>& owners, const Demand& demand,
                            std::int64_t chunk_bytes = 4 << 20) {
    const DemandRequest request{&demand, {0}, {}, -1};
    return route(model.catalogue, owners, std::span(&request, 1), {chunk_bytes});
}

/// The worker's parameters after the plan is carried out.
inline std::vector<Bytes> pull(const SmallModel& model, const std::vector<Ownership>& owners, const Demand& demand,
                               std::int64_t chunk_bytes = 4 << 20) {
    const Result<Plan> plan = plan_of(model, owners, demand, chunk_bytes);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    std::vector<OwnerMemory> memory;
    for (const Ownership& owner : owners) {
        memory.push_back(fill_owner(model, owner));
    }
    return plan.ok() ? execute(plan->routes[0], demand, memory, chunk_bytes) : std::vector<Bytes>{};
}

inline std::map<int, std::int64_t> bytes_by_owner(const Route& route) {
    std::map<int, std::int64_t> out;
    for (const Chunk& chunk : route.chunks) {
        out[chunk.owner] += chunk.wire_bytes;
    }
    return out;
}

/// Elements of two bytes of a model's tensor, by flat index.
inline Bytes picked(const SmallModel& model, const std::string& tensor, const std::vector<std::int64_t>& elements) {
    const auto id = static_cast<std::size_t>(model.catalogue.find(tensor).value());
    Bytes out(elements.size() * 2);
    for (std::size_t i = 0; i < elements.size(); ++i) {
        std::memcpy(&out[2 * i], &model.tensors[id][static_cast<std::size_t>(2 * elements[i])], 2);
    }
    return out;
}

}  // namespace sluice::test

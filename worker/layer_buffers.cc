#include "worker/layer_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace sluice {
namespace {

// As device allocators align, so that kernels may use their widest accesses.
constexpr std::int64_t kAlignment = 256;
constexpr GroupId kNoGroup = -1;

// The group of each buffered parameter, kNoGroup for all others.
Result<std::vector<GroupId>> groups_of_buffered(const Catalogue& catalogue, const Demand& demand,
                                                const ParameterStore& store) {
    std::vector<GroupId> groups(demand.parameters.size(), kNoGroup);
    const auto refuse = [&](ParameterId parameter, const char* why) {
        return invalid_argument(
            fmt::format("parameter {} cannot land in a layer buffer: {}; give it a place of its own",
                        demand.parameters[static_cast<std::size_t>(parameter)].name, why));
    };
    for (const CopyRecord& record : demand.records) {
        if (!store.buffered(record.parameter)) {
            continue;
        }
        GroupId& group = groups[static_cast<std::size_t>(record.parameter)];
        const GroupId of_record = catalogue[record.tensor].group;
        if (group != kNoGroup && group != of_record) {
            return refuse(record.parameter, "it has slices of more than one layer");
        }
        group = of_record;
    }
    for (const ZeroFill& fill : demand.fills) {
        if (store.buffered(fill.parameter)) {
            return refuse(fill.parameter, "the loader fills a part of it with zeros");
        }
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const auto parameter = static_cast<ParameterId>(i);
        if (store.buffered(parameter) && groups[i] == kNoGroup && demand.parameters[i].bytes() > 0) {
            return refuse(parameter, "nothing is copied to it");
        }
    }
    return groups;
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Result<LayerBuffers> LayerBuffers::create(const Catalogue& catalogue, const Demand& demand, const Route& route,
                                          const ParameterStore& store, int layers_in_flight, Device* device) {
    if (layers_in_flight < 1) {
        return invalid_argument(fmt::format("{} layers in flight: use 1 or more", layers_in_flight));
    }
    SLUICE_ASSIGN_OR_RETURN(const std::vector<GroupId> group_of, groups_of_buffered(catalogue, demand, store));
    LayerBuffers buffers;
    buffers.addresses_.assign(demand.parameters.size(), nullptr);
    for (const Chunk& chunk : route.chunks) {
        const bool has_buffered = std::find(group_of.begin(), group_of.end(), chunk.group) != group_of.end();
        if (has_buffered && !buffers.place_of(chunk.group)) {
            buffers.groups_.push_back(chunk.group);
        }
    }
    buffers.parameters_.resize(buffers.groups_.size());
    buffers.count_ = std::min(static_cast<std::size_t>(layers_in_flight), buffers.groups_.size());
    if (buffers.count_ == 0) {
        return buffers;
    }

    std::vector<std::int64_t> offsets(demand.parameters.size(), 0);
    std::vector<std::int64_t> group_bytes(static_cast<std::size_t>(catalogue.groups()), 0);
    std::int64_t largest = 0;
    for (std::size_t i = 0; i < group_of.size(); ++i) {
        if (group_of[i] != kNoGroup) {
            std::int64_t& used = group_bytes[static_cast<std::size_t>(group_of[i])];
            offsets[i] = used;
            used += aligned(demand.parameters[i].bytes());
            largest = std::max(largest, used);
        }
    }
    const std::int64_t all = largest * static_cast<std::int64_t>(buffers.count_);
    SLUICE_ASSIGN_OR_RETURN(buffers.memory_,
                            device != nullptr ? device->allocate(all) : Buffer::allocate(all, MemoryKind::kHost));
    for (std::size_t i = 0; i < group_of.size(); ++i) {
        if (group_of[i] != kNoGroup) {
            const std::size_t place = *buffers.place_of(group_of[i]);
            const auto buffer = static_cast<std::int64_t>(place % buffers.count_);
            buffers.addresses_[i] = buffers.memory_->data() + buffer * largest + offsets[i];
            buffers.parameters_[place].push_back(static_cast<ParameterId>(i));
        }
    }
    return buffers;
}

Status LayerBuffers::register_memory(Session& session) {
    if (memory_) {
        SLUICE_ASSIGN_OR_RETURN(region_,
                                session.register_memory(memory_->bytes(), memory_->kind(), transport::Access::kLocal));
    }
    return ok_status();
}

std::optional<std::size_t> LayerBuffers::place_of(GroupId group) const {
    const auto at = std::find(groups_.begin(), groups_.end(), group);
    return at == groups_.end() ? std::nullopt : std::optional(static_cast<std::size_t>(at - groups_.begin()));
}

}  // namespace sluice

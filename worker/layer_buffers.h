#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/plan.h"
#include "runtime/base/status.h"
#include "runtime/exchange/pull_engine.h"
#include "runtime/exchange/session.h"
#include "runtime/services/buffer.h"
#include "runtime/services/device.h"
#include "transport/transport.h"
#include "worker/parameter_store.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace sluice {

/// The groups of a worker that have parameters in layer buffers, and a ring of buffers for them. Fixed at set-up: the k-th of these groups, in the order of
/// the route, always uses buffer k mod count. docs/architecture.md says why that cannot deadlock.
class LayerBuffers {
public:
    /// Of a store without buffered parameters: no groups, no memory. Refuses, by name, a buffered parameter that nothing is copied to, that has copies of more than
    /// one group, or that the loader fills in part itself. `store` must fit `demand`.
    static Result<LayerBuffers> create(const Catalogue& catalogue, const Demand& demand, const Route& route,
                                       const ParameterStore& store, int layers_in_flight, Device* device);

    /// Registers the memory for the gets that write it.
    Status register_memory(Session& session);
    void deregister() { region_.reset(); }

    /// In the order in which they become open.
    [[nodiscard]] const std::vector<GroupId>& groups() const { return groups_; }
    /// How many of them are open from the start of a version.
    [[nodiscard]] std::size_t count() const { return count_; }
    [[nodiscard]] std::int64_t bytes() const { return memory_ ? static_cast<std::int64_t>(memory_->size()) : 0; }

    /// Its place among groups(), or nothing for a group that has nothing buffered.
    [[nodiscard]] std::optional<std::size_t> place_of(GroupId group) const;
    /// The buffered parameters of the group at that place, rising.
    [[nodiscard]] std::span<const ParameterId> parameters_of(std::size_t place) const { return parameters_[place]; }
    /// By ParameterId; null: not buffered.
    [[nodiscard]] std::span<std::byte* const> addresses() const { return addresses_; }
    [[nodiscard]] Destination destination(ParameterId parameter) const {
        return {addresses_[static_cast<std::size_t>(parameter)], region_.get()};
    }

private:
    LayerBuffers() = default;

    std::vector<GroupId> groups_;
    std::vector<std::vector<ParameterId>> parameters_;  // by place in groups_
    std::size_t count_ = 0;
    std::optional<Buffer> memory_;
    std::unique_ptr<transport::MemoryRegion> region_;
    std::vector<std::byte*> addresses_;
};

}  // namespace sluice

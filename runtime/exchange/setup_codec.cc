#include "runtime/exchange/setup_codec.h"

#include "planner/plan_codec.h"
#include "runtime/exchange/setup.pb.h"
#include "runtime/exchange/setup_message.h"
#include "runtime/services/copy_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace sluice {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}
void assign(std::string& to, std::span<const std::byte> from) {
    to.assign(reinterpret_cast<const char*>(from.data()), from.size());
}
std::vector<std::byte> copy_of(const std::string& text) {
    const auto bytes = bytes_of(text);
    return {bytes.begin(), bytes.end()};
}

void put(const Status& status, wire::StatusMessage& message) {
    message.set_code(static_cast<int>(status.code()));
    message.set_text(status.message());
}

Status get(const wire::StatusMessage& message) {
    if (message.code() == static_cast<int>(StatusCode::kOk)) {
        return ok_status();
    }
    const bool known = message.code() > 0 && message.code() <= static_cast<int>(StatusCode::kInternal);
    return {known ? static_cast<StatusCode>(message.code()) : StatusCode::kInternal, message.text()};
}

void put(const RemoteRegion& region, wire::RegionMessage& message) {
    message.set_address(region.address);
    message.set_bytes(region.bytes);
    assign(*message.mutable_key(), region.key);
    if (region.shared) {
        wire::SharedMemoryMessage& shared = *message.mutable_shared();
        shared.set_process(region.shared->process);
        shared.set_file_descriptor(region.shared->descriptor);
        shared.set_device(region.shared->device);
        shared.set_inode(region.shared->inode);
    }
    assign(*message.mutable_shared_device(), region.shared_device);
}

RemoteRegion get(const wire::RegionMessage& message) {
    RemoteRegion region{
        message.address(), message.bytes(), copy_of(message.key()), {}, copy_of(message.shared_device())};
    if (message.has_shared()) {
        const wire::SharedMemoryMessage& shared = message.shared();
        region.shared = SharedMemoryHandle{shared.process(), shared.file_descriptor(), shared.device(), shared.inode()};
    }
    return region;
}

void put(const RemoteMemory& memory, wire::MemoryMessage& message) {
    for (const RemoteRegion& region : memory.segments) {
        put(region, *message.add_segments());
    }
    for (const RemoteRegion& region : memory.gather_buffers) {
        put(region, *message.add_gather_buffers());
    }
    put(memory.slots, *message.mutable_slots());
    message.set_slot_bytes(memory.slot_bytes);
}

RemoteMemory get(const wire::MemoryMessage& message) {
    RemoteMemory memory;
    for (const auto& region : message.segments()) {
        memory.segments.push_back(get(region));
    }
    for (const auto& region : message.gather_buffers()) {
        memory.gather_buffers.push_back(get(region));
    }
    memory.slots = get(message.slots());
    memory.slot_bytes = message.slot_bytes();
    return memory;
}

bool names_each_once(std::vector<GroupId> order, GroupId groups) {
    std::vector<GroupId> all(static_cast<std::size_t>(groups));
    std::iota(all.begin(), all.end(), 0);
    std::sort(order.begin(), order.end());
    return order == all;
}

}  // namespace

std::vector<std::byte> encode_card(std::span<const std::byte> address, const Result<MemoryCard>& memory) {
    wire::CardMessage message;
    assign(*message.mutable_address(), address);
    put(memory.status(), *message.mutable_status());
    if (memory.ok()) {
        put(memory->flows[static_cast<std::size_t>(FlowId::kSync)], *message.mutable_sync());
        put(memory->flows[static_cast<std::size_t>(FlowId::kGather)], *message.mutable_gather());
        message.set_device_uuid(memory->device_uuid);
    }
    return serialise(message);
}

Result<Card> decode_card(std::span<const std::byte> bytes) {
    wire::CardMessage message;
    SLUICE_RETURN_IF_ERROR(parse(bytes, message));
    SLUICE_RETURN_IF_ERROR(get(message.status()));
    Card card;
    card.address = copy_of(message.address());
    card.memory.flows[static_cast<std::size_t>(FlowId::kSync)] = get(message.sync());
    card.memory.flows[static_cast<std::size_t>(FlowId::kGather)] = get(message.gather());
    card.memory.device_uuid = message.device_uuid();
    return card;
}

std::vector<std::byte> encode_status(const Status& status) {
    wire::StatusMessage message;
    put(status, message);
    return serialise(message);
}

Status decode_status(std::span<const std::byte> bytes) {
    wire::StatusMessage message;
    SLUICE_RETURN_IF_ERROR(parse(bytes, message));
    return get(message);
}

std::vector<std::byte> encode_input(const RankInput& input, std::uint64_t catalogue_digest, std::int64_t chunk_bytes) {
    wire::RankInputMessage message;
    message.set_trainer(input.trainer);
    message.set_own_rank(input.own_rank);
    message.set_catalogue_digest(catalogue_digest);
    message.set_chunk_bytes(chunk_bytes);
    put(input.status, *message.mutable_status());
    message.set_mappable_on(input.mappable_on);
    message.set_device_memory(input.device_memory);
    message.set_staged(input.staged);
    message.set_group(static_cast<int>(input.group));
    if (input.trainer) {
        message.set_ownership(encode_ownership(input.ownership));
        if (input.gather) {
            const GatherDemand& demand = input.gather->demand;
            message.set_shards(encode_ownership(input.gather->shards));
            message.set_gather_dense(encode_demand(demand.dense));
            message.set_gather_experts(encode_demand(demand.experts));
            message.mutable_dense_owners()->Add(demand.dense_owners.begin(), demand.dense_owners.end());
            message.mutable_expert_owners()->Add(demand.expert_owners.begin(), demand.expert_owners.end());
            message.mutable_gather_groups()->Add(demand.groups.begin(), demand.groups.end());
        }
    } else {
        message.set_demand_key(input.demand_key);
        if (input.demand) {
            message.set_demand(encode_demand(*input.demand));
        }
    }
    return serialise(message);
}

Result<DecodedInput> decode_input(std::span<const std::byte> bytes, const Catalogue& catalogue) {
    wire::RankInputMessage message;
    SLUICE_RETURN_IF_ERROR(parse(bytes, message));
    DecodedInput out;
    out.catalogue_digest = message.catalogue_digest();
    out.chunk_bytes = message.chunk_bytes();
    RankInput& input = out.input;
    input.trainer = message.trainer();
    input.mappable_on = message.mappable_on();
    input.device_memory = message.device_memory();
    input.staged = message.staged();
    if (message.group() < 0 || message.group() > static_cast<int>(RankInput::Group::kFailed)) {
        return internal_error(fmt::format("{} is no state of a group", message.group()));
    }
    input.group = static_cast<RankInput::Group>(message.group());
    input.own_rank = message.own_rank();
    input.status = get(message.status());
    if (!input.status.ok() || out.catalogue_digest != catalogue.digest()) {
        return out;  // what follows may not fit this catalogue
    }
    if (input.trainer) {
        SLUICE_ASSIGN_OR_RETURN(input.ownership, decode_ownership(message.ownership(), catalogue));
        if (!message.shards().empty()) {
            RankInput::Gather& gather = input.gather.emplace();
            SLUICE_ASSIGN_OR_RETURN(gather.shards, decode_ownership(message.shards(), catalogue));
            SLUICE_ASSIGN_OR_RETURN(gather.demand.dense, decode_demand(message.gather_dense(), catalogue));
            SLUICE_ASSIGN_OR_RETURN(gather.demand.experts, decode_demand(message.gather_experts(), catalogue));
            gather.demand.dense_owners.assign(message.dense_owners().begin(), message.dense_owners().end());
            gather.demand.expert_owners.assign(message.expert_owners().begin(), message.expert_owners().end());
            gather.demand.groups.assign(message.gather_groups().begin(), message.gather_groups().end());
        }
    } else {
        input.demand_key = message.demand_key();
        if (!message.demand().empty()) {
            SLUICE_ASSIGN_OR_RETURN(input.demand, decode_demand(message.demand(), catalogue));
            ChunkHash digest;
            digest.update(reinterpret_cast<const std::byte*>(message.demand().data()), message.demand().size());
            input.demand_digest = digest.digest();
        }
    }
    return out;
}

std::vector<std::byte> encode_rank_plan(const Result<RankPlan>& plan) {
    wire::RankPlanMessage message;
    put(plan.status(), *message.mutable_status());
    if (plan.ok()) {
        message.set_session(plan->session);
        message.set_fingerprint(plan->fingerprint);
        message.set_staged(plan->staged);
        message.set_gathers_by_group(plan->gathers_by_group);
        message.mutable_trainers()->Add(plan->trainers.begin(), plan->trainers.end());
        message.mutable_workers()->Add(plan->workers.begin(), plan->workers.end());
        message.set_route(encode_route(plan->route));
        message.set_owner_route(encode_owner_route(plan->owner_route));
        message.set_gather_route(encode_route(plan->gather_route));
        message.set_gather_owner_route(encode_owner_route(plan->gather_owner_route));
        message.mutable_group_order()->Add(plan->group_order.begin(), plan->group_order.end());
    }
    return serialise(message);
}

Result<RankPlan> decode_rank_plan(std::span<const std::byte> bytes, const RankInput& input, const Catalogue& catalogue,
                                  std::int64_t chunk_bytes) {
    wire::RankPlanMessage message;
    SLUICE_RETURN_IF_ERROR(parse(bytes, message));
    SLUICE_RETURN_IF_ERROR(get(message.status()));
    RankPlan plan;
    plan.session = message.session();
    plan.fingerprint = message.fingerprint();
    plan.staged = message.staged();
    plan.gathers_by_group = message.gathers_by_group();
    plan.trainers.assign(message.trainers().begin(), message.trainers().end());
    plan.workers.assign(message.workers().begin(), message.workers().end());
    const PlanLimits sync{message.trainers_size(), message.workers_size(), catalogue.groups(), chunk_bytes};
    const PlanLimits gather{message.trainers_size(), message.trainers_size(), catalogue.groups(), chunk_bytes};
    if (!input.trainer) {
        if (!input.demand) {
            return internal_error(fmt::format("worker {} cannot check its route without its demand", input.own_rank));
        }
        SLUICE_ASSIGN_OR_RETURN(plan.route, decode_route(message.route(), sync, input.demand->parameters));
        return plan;
    }
    SLUICE_ASSIGN_OR_RETURN(plan.owner_route, decode_owner_route(message.owner_route(), sync, input.ownership));
    if (input.gather) {
        SLUICE_ASSIGN_OR_RETURN(plan.gather_route,
                                decode_route(message.gather_route(), gather, input.gather->demand.dense.parameters));
        SLUICE_ASSIGN_OR_RETURN(plan.gather_owner_route,
                                decode_owner_route(message.gather_owner_route(), gather, input.gather->shards));
        plan.group_order.assign(message.group_order().begin(), message.group_order().end());
        if (!names_each_once(plan.group_order, catalogue.groups())) {
            return internal_error("the order of the plan does not name each group once");
        }
    }
    return plan;
}

}  // namespace sluice

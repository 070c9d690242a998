#include "bench/broadcast_rank.h"

#include "planner/dry_run.h"
#include "planner/trainer_ownership.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace sluice::bench {
namespace {

// Groups under way: one is gathered, one broadcast, one copied out of.
constexpr std::size_t kBuffers = 3;
constexpr std::int64_t kAlignment = 256;

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

/// How far rank 0 is, for the thread that gathers and the one that broadcasts.
class BroadcastRank::Progress {
public:
    enum class Step : std::uint8_t { kGathered, kBroadcast };

    void done(Step step, int groups) {
        const std::lock_guard lock(mutex_);
        done_[static_cast<std::size_t>(step)] = groups;
        changed_.notify_all();
    }
    void fail(const Status& status) {
        const std::lock_guard lock(mutex_);
        failure_ = failure_.ok() ? status : failure_;
        changed_.notify_all();
    }
    Status wait(Step step, int groups, Deadline deadline) {
        std::unique_lock lock(mutex_);
        const bool came = changed_.wait_until(
            lock, deadline.when(), [&] { return !failure_.ok() || done_[static_cast<std::size_t>(step)] >= groups; });
        SLUICE_RETURN_IF_ERROR(failure_);
        return came ? ok_status()
                    : deadline_exceeded(fmt::format("{} groups were not {} in time", groups,
                                                    step == Step::kGathered ? "gathered" : "broadcast"));
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::array<int, 2> done_{};
    Status failure_;
};

BroadcastRank::BroadcastRank(const cli::Model& model, Device& device, int rank)
    : model_(model), values_(model), device_(device), rank_(rank) {}

Status BroadcastRank::open(const TrainerLayout& trainer, const std::vector<WorkerLayout>& pools) {
    trainers_ = trainer.world_size();
    for (int rank = 0; rank < trainers_; ++rank) {
        SLUICE_ASSIGN_OR_RETURN(owners_.emplace_back(), trainer_ownership(model_.catalogue, model_.config, trainer,
                                                                          rank, SourceKind::kResident));
    }
    boxes_ = distinct_boxes(model_.catalogue, owners_);
    plan_groups();
    if (rank_ < trainers_) {
        SLUICE_ASSIGN_OR_RETURN(
            weights_, cli::TrainerWeights::allocate(model_.catalogue, owners_[static_cast<std::size_t>(rank_)], values_,
                                                    &device_));
    } else {
        SLUICE_RETURN_IF_ERROR(open_worker(pools, rank_ - trainers_));
    }
    SLUICE_RETURN_IF_ERROR(compile());
    return allocate();
}

std::optional<int> BroadcastRank::place_in_gather() const { return worker() ? std::nullopt : std::optional(rank_); }

std::optional<int> BroadcastRank::place_in_broadcast() const {
    return root() ? std::optional(0) : worker() ? std::optional(rank_ - trainers_ + 1) : std::nullopt;
}

void BroadcastRank::connect(std::unique_ptr<NcclGroup> gather, std::unique_ptr<NcclGroup> broadcast) {
    gather_ = std::move(gather);
    broadcast_ = std::move(broadcast);
}

Status BroadcastRank::prepare(std::uint64_t version) {
    return weights_ ? weights_->write_version(version) : parameters_->poison();
}

Status BroadcastRank::run(Deadline deadline) {
    return root() ? lead(deadline) : worker() ? keep(deadline) : ship(deadline);
}

Status BroadcastRank::verify(std::uint64_t version) {
    return verifier_ ? verifier_->verify(Route{}, version).status : ok_status();
}

std::int64_t BroadcastRank::gathered_bytes() const {
    std::int64_t sum = 0;
    for (const Group& group : groups_) {
        for (const Shipment& shipment : group.shipments) {
            sum += shipment.bytes;
        }
    }
    return sum;
}

void BroadcastRank::plan_groups() {
    groups_.resize(static_cast<std::size_t>(model_.catalogue.groups()));
    for (const CatalogueTensor& tensor : model_.catalogue.tensors()) {
        Group& group = groups_[static_cast<std::size_t>(tensor.group)];
        places_.push_back(group.bytes);
        group.bytes = aligned(group.bytes + tensor.bytes());
    }
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
        const Box& box = boxes_[i];
        Group& group = groups_[static_cast<std::size_t>(model_.catalogue[box.tensor].group)];
        if (box.owner(0) != nullptr) {
            group.own.push_back(&box);
            continue;
        }
        const int from = box.owners[i % box.owners.size()].rank;  // Replicas take turns.
        auto shipment = std::find_if(group.shipments.begin(), group.shipments.end(),
                                     [&](const Shipment& one) { return one.from == from; });
        if (shipment == group.shipments.end()) {
            shipment = group.shipments.insert(shipment, Shipment{from, 0, 0, {}});
        }
        shipment->boxes.emplace_back(&box, shipment->bytes);
        shipment->bytes = aligned(shipment->bytes + box.bytes());
    }
    for (Group& group : groups_) {
        for (Shipment& shipment : group.shipments) {
            shipment.begin = group.received;
            group.received += shipment.bytes;
        }
    }
}

Status BroadcastRank::open_worker(const std::vector<WorkerLayout>& pools, int number) {
    for (const WorkerLayout& pool : pools) {
        if (number < pool.world_size()) {
            SLUICE_ASSIGN_OR_RETURN(demand_, dry_run(model_.catalogue, model_.config, pool, number % pool.pool_size()));
            SLUICE_ASSIGN_OR_RETURN(parameters_, cli::WorkerParameters::allocate(demand_, &device_));
            verifier_.emplace(model_.catalogue, demand_, *parameters_, values_, &device_);
            return ok_status();
        }
        number -= pool.world_size();
    }
    return internal_error("a worker rank is in no pool");
}

Status BroadcastRank::compile() {
    std::vector<std::vector<DeviceCopy>> copies(groups_.size());
    const auto to_full = [&](const Box& box, StridedCopy copy) -> DeviceCopy& {
        const auto group = static_cast<std::size_t>(model_.catalogue[box.tensor].group);
        DeviceCopy& out = copies[group].emplace_back();
        copy.dst_offset += place_of(box.tensor);
        out.copy = copy;
        out.target_base = DeviceBase::kWire;
        return out;
    };
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        for (const Box* box : root() ? groups_[i].own : std::vector<const Box*>()) {
            to_full(*box, box->owner(0)->copy).source = weights_->bytes().data();
        }
        for (const Shipment& shipment : groups_[i].shipments) {
            for (const auto& [box, at] : shipment.boxes) {
                if (root()) {
                    to_full(*box, destination_from_packed(box->owners.front().copy, shipment.begin + at)).source_base =
                        DeviceBase::kGathered;
                } else if (shipment.from == rank_) {
                    DeviceCopy& out = copies[i].emplace_back();
                    out.copy = packed_from_source(box->owner(rank_)->copy, at);
                    out.source = weights_->bytes().data();
                    out.target_base = DeviceBase::kWire;
                }
            }
        }
    }
    for (const CopyRecord& record : demand_.records) {
        DeviceCopy& out = copies[static_cast<std::size_t>(model_.catalogue[record.tensor].group)].emplace_back();
        out.copy = coalesce(record.copy, record.converts());
        out.copy.src_offset += place_of(record.tensor);
        out.source_base = DeviceBase::kWire;
        out.target = parameters_->store().address(record.parameter);
        out.from = record.source_dtype;
        out.to = record.parameter_dtype;
    }
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        SLUICE_ASSIGN_OR_RETURN(groups_[i].program, device_.compile(copies[i]));
    }
    return ok_status();
}

Status BroadcastRank::allocate() {
    std::int64_t full = 1;
    std::int64_t received = 1;
    std::int64_t sent = 1;
    for (const Group& group : groups_) {
        full = std::max(full, group.bytes);
        received = std::max(received, group.received);
        for (const Shipment& shipment : group.shipments) {
            sent = std::max(sent, shipment.from == rank_ ? shipment.bytes : 0);
        }
    }
    for (std::size_t i = 0; i < kBuffers; ++i) {
        if (root() || worker()) {
            SLUICE_ASSIGN_OR_RETURN(Buffer memory, device_.allocate(full));
            full_.push_back(std::move(memory));
            SLUICE_ASSIGN_OR_RETURN(copying_.emplace_back(), device_.make_stream());
            SLUICE_ASSIGN_OR_RETURN(broadcasting_.emplace_back(), device_.make_stream());
        }
        if (root()) {
            SLUICE_ASSIGN_OR_RETURN(Buffer memory, device_.allocate(received));
            received_.push_back(std::move(memory));
        }
    }
    if (!root() && !worker()) {
        SLUICE_ASSIGN_OR_RETURN(sent_, device_.allocate(sent));
    }
    return ok_status();
}

// Rank 0. A second thread gathers.
Status BroadcastRank::lead(Deadline deadline) {
    Progress progress;
    std::thread gatherer([&] {
        for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
            if (const Status status = gather(group, progress, deadline); !status.ok()) {
                progress.fail(status);
                return;
            }
            progress.done(Progress::Step::kGathered, group + 1);
        }
    });
    const Status status = send_all(progress, deadline);
    if (!status.ok()) {
        progress.fail(status);
    }
    gatherer.join();
    return status;
}

Status BroadcastRank::gather(int number, Progress& progress, Deadline deadline) {
    const Group& group = groups_[static_cast<std::size_t>(number)];
    const std::size_t buffer = static_cast<std::size_t>(number) % kBuffers;
    SLUICE_RETURN_IF_ERROR(
        progress.wait(Progress::Step::kBroadcast, number + 1 - static_cast<int>(kBuffers), deadline));
    std::vector<CollectiveGroup::Transfer> receives;
    for (const Shipment& shipment : group.shipments) {
        receives.push_back({shipment.from, received_[buffer].data() + shipment.begin, shipment.bytes});
    }
    if (!receives.empty()) {
        SLUICE_RETURN_IF_ERROR(gather_->exchange({}, receives, deadline));
    }
    return copying_[buffer]->run(*group.program, {full_[buffer].data(), received_[buffer].data()});
}

// The next broadcast is queued while the one before runs.
Status BroadcastRank::send_all(Progress& progress, Deadline deadline) {
    const int groups = static_cast<int>(groups_.size());
    for (int number = 0; number <= groups; ++number) {
        if (number < groups) {
            const std::size_t buffer = static_cast<std::size_t>(number) % kBuffers;
            SLUICE_RETURN_IF_ERROR(progress.wait(Progress::Step::kGathered, number + 1, deadline));
            SLUICE_RETURN_IF_ERROR(copying_[buffer]->precede(broadcast_->stream()));
            SLUICE_RETURN_IF_ERROR(broadcast_->broadcast(full_[buffer].data(),
                                                         groups_[static_cast<std::size_t>(number)].bytes, 0, deadline));
            SLUICE_RETURN_IF_ERROR(broadcasting_[buffer]->follow(broadcast_->stream()));
        }
        if (number > 0) {
            SLUICE_RETURN_IF_ERROR(broadcasting_[static_cast<std::size_t>(number - 1) % kBuffers]->wait(deadline));
            progress.done(Progress::Step::kBroadcast, number);
        }
    }
    return broadcast_->wait(deadline);
}

// Other trainers.
Status BroadcastRank::ship(Deadline deadline) {
    for (const Group& group : groups_) {
        for (const Shipment& shipment : group.shipments) {
            if (shipment.from == rank_) {
                SLUICE_RETURN_IF_ERROR(device_.run(*group.program, {sent_->data(), nullptr}, 0, nullptr));
                const CollectiveGroup::Transfer send{0, sent_->data(), shipment.bytes};
                SLUICE_RETURN_IF_ERROR(gather_->exchange({&send, 1}, {}, deadline));
            }
        }
    }
    return ok_status();
}

// Workers. All of it is queued on the device at once.
Status BroadcastRank::keep(Deadline deadline) {
    for (std::size_t number = 0; number < groups_.size(); ++number) {
        const std::size_t buffer = number % kBuffers;
        SLUICE_RETURN_IF_ERROR(copying_[buffer]->precede(broadcast_->stream()));
        SLUICE_RETURN_IF_ERROR(broadcast_->broadcast(full_[buffer].data(), groups_[number].bytes, 0, deadline));
        SLUICE_RETURN_IF_ERROR(copying_[buffer]->follow(broadcast_->stream()));
        SLUICE_RETURN_IF_ERROR(copying_[buffer]->run(*groups_[number].program, {full_[buffer].data(), nullptr}));
    }
    SLUICE_RETURN_IF_ERROR(broadcast_->wait(deadline));
    for (const auto& stream : copying_) {
        SLUICE_RETURN_IF_ERROR(stream->wait(deadline));
    }
    return ok_status();
}

}  // namespace sluice::bench

#pragma once

#include "bench/gather_boxes.h"
#include "cli/model_source.h"
#include "cli/trainer_weights.h"
#include "cli/verify_device.h"
#include "cli/weight_values.h"
#include "cli/worker_parameters.h"
#include "planner/layout.h"
#include "runtime/base/status.h"
#include "runtime/cuda/nccl_group.h"
#include "runtime/services/deadline.h"
#include "runtime/services/device.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace sluice::bench {

/// One rank's part in handing weights over as is usual: trainer 0 gathers full tensors, group by group, and broadcasts them to all workers, each of
/// which keeps its part. The gather of a group, its broadcast and the copies out of it overlap with those of its neighbours.
class BroadcastRank {
public:
    /// Trainers come first. Model and device outlive it.
    BroadcastRank(const cli::Model& model, Device& device, int rank);

    Status open(const TrainerLayout& trainer, const std::vector<WorkerLayout>& pools);

    /// Places in the two groups: of all trainers, and of trainer 0 and all workers, in this order.
    [[nodiscard]] std::optional<int> place_in_gather() const;
    [[nodiscard]] std::optional<int> place_in_broadcast() const;
    /// Null where it has no place, and `gather` where there is one trainer.
    void connect(std::unique_ptr<NcclGroup> gather, std::unique_ptr<NcclGroup> broadcast);

    /// Before the clock starts: the version at the trainers, poison elsewhere.
    Status prepare(std::uint64_t version);
    Status run(Deadline deadline);
    /// What has arrived is that of the version.
    Status verify(std::uint64_t version);

    /// That trainer 0 gets from the others.
    [[nodiscard]] std::int64_t gathered_bytes() const;

private:
    /// Bytes of a group that one trainer sends to the first.
    struct Shipment {
        int from = 0;
        std::int64_t begin = 0;  // where it lands in the buffer of what is received
        std::int64_t bytes = 0;
        std::vector<std::pair<const Box*, std::int64_t>> boxes;  // and where they lie in it
    };
    struct Group {
        std::int64_t bytes = 0;                  // full tensors, one after the other
        std::int64_t received = 0;               // from other trainers
        std::vector<Shipment> shipments;         // by sender
        std::vector<const Box*> own;             // of trainer 0
        std::unique_ptr<DeviceProgram> program;  // this rank's: put together, pack, or keep
    };
    class Progress;

    [[nodiscard]] bool root() const { return rank_ == 0; }
    [[nodiscard]] bool worker() const { return rank_ >= trainers_; }
    [[nodiscard]] std::int64_t place_of(TensorId tensor) const { return places_[static_cast<std::size_t>(tensor)]; }
    void plan_groups();
    Status open_worker(const std::vector<WorkerLayout>& pools, int number);
    Status compile();
    Status allocate();
    Status lead(Deadline deadline);
    Status gather(int number, Progress& progress, Deadline deadline);
    Status send_all(Progress& progress, Deadline deadline);
    Status ship(Deadline deadline);
    Status keep(Deadline deadline);

    const cli::Model& model_;
    cli::WeightValues values_;
    Device& device_;
    int rank_;
    int trainers_ = 0;
    std::vector<Ownership> owners_;
    std::vector<Box> boxes_;
    std::vector<std::int64_t> places_;  // by tensor, in its group's buffer
    std::vector<Group> groups_;
    std::optional<cli::TrainerWeights> weights_;
    Demand demand_;
    std::optional<cli::WorkerParameters> parameters_;
    std::optional<cli::ParameterVerifier> verifier_;  // of parameters_
    std::vector<Buffer> full_, received_;
    std::optional<Buffer> sent_;
    std::vector<std::unique_ptr<DeviceStream>> copying_, broadcasting_;  // by buffer
    std::unique_ptr<NcclGroup> gather_, broadcast_;
};

}  // namespace sluice::bench

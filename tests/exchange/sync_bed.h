#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/gather.h"
#include "planner/layout.h"
#include "planner/model_config.h"
#include "planner/ownership.h"
#include "planner/trainer_ownership.h"
#include "runtime/base/settings.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/exchange/session.h"
#include "runtime/services/buffer.h"
#include "runtime/services/collective_group.h"
#include "runtime/services/device.h"
#include "tests/transport/network.h"
#include "trainer/trainer.h"
#include "transport/fake/fake_transport.h"
#include "worker/worker.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Whole syncs of a small model for tests: ranks made as the command line makes them, each with memory of its own, values that
/// say which tensor, element and version they are, and a check of every byte that a worker has.
namespace sluice::test {

/// Limits that suit a small model on a busy machine.
Settings bed_settings();

struct BedOptions {
    std::string model = "Qwen3-30B-A3B";
    std::vector<std::pair<std::string, std::string>> fields;  ///< Config fields; empty = the small Qwen3-MoE.
    std::string trainer = "tp=2";
    std::vector<std::string> workers = {"tp=2"};
    SourceKind source = SourceKind::kResident;
    RouteOptions route{.chunk_bytes = 4096,
                       .direct_piece = 0};  // small as the model is, its runs are read as long ones are
    bool hashes = true;
    bool trace = false;
    Settings settings = bed_settings();
    /// Makes the device that a rank's weights lie on; null (or no function): they lie in host memory. `worker`: which side it is.
    std::function<std::unique_ptr<Device>(int world_rank, bool worker)> open_device = {};
    /// Makes the group that a gathering trainer gathers with; null (or no function): it pulls.
    std::function<std::unique_ptr<CollectiveGroup>(int trainer_rank)> open_group = {};
};

/// The model and the layouts, as every rank derives them from the options.
struct BedModel {
    explicit BedModel(const BedOptions& options);

    /// The whole tensor, as it is in `version`.
    [[nodiscard]] std::vector<std::byte> tensor(TensorId id, std::uint64_t version) const;
    /// By ParameterId: the demand's records applied to whole tensors, zeros where it declares a fill, poison elsewhere.
    [[nodiscard]] std::vector<std::vector<std::byte>> parameters(const Demand& demand, std::uint64_t version) const;

    ModelConfig config;
    Catalogue catalogue;
    TrainerLayout trainer;
    std::vector<WorkerLayout> pools;
    int trainers = 0;
    int workers = 0;
    [[nodiscard]] int ranks() const { return trainers + workers; }
};

/// One rank: trainers first, then the pools in order.
class BedRank {
public:
    BedRank(const BedOptions& options, const BedModel& model, int world_rank);

    /// May be changed before create().
    Worker::Hooks hooks;
    Worker::Options worker_options;
    Trainer::Options trainer_options;

    Status create(Bootstrap& bootstrap, const Session::TransportFactory& open_transport);
    /// A worker's, called when its demand is known (in create(), before the worker is made): which parameters land in layer buffers. It may set the hooks
    /// that take them from there.
    std::function<std::vector<ParameterId>(BedRank& rank)> buffered = {};
    /// Changes a worker's demand before the worker is made.
    std::function<void(Demand&)> change_demand = {};
    /// A trainer's source has so much less memory than its ownership says.
    std::int64_t missing_bytes = 0;
    /// A trainer's weights become those of `version`; a worker's parameters become poison.
    void prepare(std::uint64_t version);
    /// `stream_or_event`: a worker's stream, a trainer's event.
    Status sync(std::uint64_t version, void* stream_or_event = nullptr);
    /// Collective, like Worker::close and Trainer::close.
    void close();

    /// Names of a worker's parameters that are not exactly those of `version`; not of those in layer buffers.
    [[nodiscard]] std::vector<std::string> wrong_parameters(std::uint64_t version);

    [[nodiscard]] bool is_trainer() const { return world_rank_ < model_.trainers; }
    [[nodiscard]] int own_rank() const { return is_trainer() ? world_rank_ : world_rank_ - model_.trainers; }
    [[nodiscard]] int world_rank() const { return world_rank_; }
    [[nodiscard]] const BedModel& model() const { return model_; }
    [[nodiscard]] Trainer& trainer() { return *trainer_; }
    [[nodiscard]] Worker& worker() { return *worker_; }
    [[nodiscard]] Session& session() { return *session_; }
    /// A trainer's, as its kind.
    template <class Source>
    [[nodiscard]] Source& source() {
        return static_cast<Source&>(*source_);
    }
    [[nodiscard]] const Demand& demand() const { return demand_; }
    /// A trainer's stored weights, a worker's parameters. With a device, what of them was last written here or read there.
    [[nodiscard]] std::span<std::byte> memory() { return memory_->bytes(); }
    /// Null for host memory.
    [[nodiscard]] Device* device() { return device_.get(); }
    /// The weights or parameters where the device has them.
    [[nodiscard]] std::span<std::byte> device_memory() { return device_memory_->bytes(); }
    /// For what create() finds there: gives the device memory in another way (before create()).
    std::function<Result<Buffer>(Device& device, std::int64_t size)> allocate_on_device =
        [](Device& device, std::int64_t size) { return device.allocate(size); };
    [[nodiscard]] std::byte* parameter(ParameterId id) const { return store_.address(id); }
    /// The same in memory().
    [[nodiscard]] std::byte* host_parameter(ParameterId id) {
        return memory_->data() + store_.places[static_cast<std::size_t>(id)].offset;
    }

private:
    Status prepare_trainer();
    Status prepare_worker();
    // Where the exchange finds the rank's memory.
    Result<std::pair<std::byte*, MemoryKind>> place_memory(std::int64_t bytes);
    void upload();

    const BedOptions& options_;
    const BedModel& model_;
    int world_rank_;
    int demand_key_ = 0;
    std::unique_ptr<Device> device_;
    std::optional<Buffer> memory_;
    std::optional<Buffer> device_memory_;
    Ownership offered_, stored_;
    std::unique_ptr<CollectiveGroup> group_;
    std::unique_ptr<WeightSource> source_;
    Demand demand_;
    ParameterStore store_;
    std::unique_ptr<Session> session_;
    std::unique_ptr<Trainer> trainer_;
    std::unique_ptr<Worker> worker_;
};

/// How to open a UCX transport for `network`.
Session::TransportFactory ucx_factory(Network network);

/// All ranks in this process. Whatever is collective runs on one thread per rank.
class SyncBed {
public:
    explicit SyncBed(BedOptions options, Network network = Network::kFakeOneSided);
    /// Closes.
    ~SyncBed();
    SyncBed(const SyncBed&) = delete;
    SyncBed& operator=(const SyncBed&) = delete;

    /// Called by each rank's thread before it comes to create(); may wait.
    std::function<void(int world_rank)> delay_create = [](int) {};
    /// By world rank. Whoever wants other options or hooks sets them at the ranks first.
    std::vector<Status> try_create();
    /// What a rank was last created with.
    [[nodiscard]] Bootstrap& bootstrap(int world_rank) { return *bootstraps_[static_cast<std::size_t>(world_rank)]; }
    /// How long the last try_create() took a rank, with its delay.
    [[nodiscard]] std::chrono::duration<double> create_took(int world_rank) const {
        return create_took_[static_cast<std::size_t>(world_rank)];
    }
    /// The same as try_create(), and fails the test when a rank could not.
    void create();
    /// Prepares and syncs every rank that is not in `without`; by world rank (ok for those left out).
    std::vector<Status> try_sync(std::uint64_t version, const std::vector<int>& without = {});
    /// The same; fails the test unless all ranks are ok and every parameter is right.
    void sync(std::uint64_t version);
    void expect_right(std::uint64_t version);
    void close();
    /// Runs `work` for every rank, each on a thread of its own, and waits for all.
    void each_rank(const std::function<void(BedRank&)>& work);

    [[nodiscard]] const BedModel& model() const { return model_; }
    [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
    [[nodiscard]] BedRank& rank(int world_rank) { return *ranks_[static_cast<std::size_t>(world_rank)]; }
    [[nodiscard]] BedRank& trainer(int own_rank) { return rank(own_rank); }
    [[nodiscard]] BedRank& worker(int own_rank) { return rank(model_.trainers + own_rank); }
    [[nodiscard]] transport::FakeFabric& fabric() { return fabric_; }
    [[nodiscard]] transport::FakeId fake_id(int world_rank) const {
        return fake_ids_[static_cast<std::size_t>(world_rank)];
    }

private:
    BedOptions options_;
    BedModel model_;
    Network network_;
    transport::FakeFabric fabric_;
    std::vector<transport::FakeId> fake_ids_;
    std::vector<std::chrono::duration<double>> create_took_;
    std::vector<std::unique_ptr<Bootstrap>> bootstraps_;
    std::vector<std::unique_ptr<BedRank>> ranks_;
    bool closed_ = false;
};

}  // namespace sluice::test

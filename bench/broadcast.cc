// The usual ways to hand weights over, by MPI alone, as the yardstick of bench/ladder.py; see docs/benchmarks.md.
//   bench_broadcast --trainer L --worker L   rank 0 gathers full tensors from the trainers and broadcasts them, packed, to all
//                                            workers in a pipelined chain; each worker keeps its part
//   bench_broadcast ... --into M              the trainers that hold L gather among themselves until they hold M
// What has arrived is compared with the values at its source, each time.
#include "bench/gather_boxes.h"
#include "bench/relay.h"
#include "bench/spread.h"
#include "cli/common_options.h"
#include "cli/exit_code.h"
#include "cli/json_output.h"
#include "cli/trainer_weights.h"
#include "cli/verify_full.h"
#include "cli/weight_values.h"
#include "cli/worker_parameters.h"
#include "planner/dry_run.h"
#include "runtime/exchange/agreement.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "runtime/services/copy_engine.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;
using cli::Model;

struct Options {
    cli::LayoutOptions layout;
    std::string into;
    std::string segment = "256K";
    int window = 32;
    int repetitions = 3;
    std::string json;
};

Result<std::vector<Ownership>> owners_of(const Model& model, const TrainerLayout& layout) {
    std::vector<Ownership> owners;
    for (int rank = 0; rank < layout.world_size(); ++rank) {
        SLUICE_ASSIGN_OR_RETURN(owners.emplace_back(),
                                trainer_ownership(model.catalogue, model.config, layout, rank, SourceKind::kResident));
    }
    return owners;
}

/// One rank's part in one way to hand weights over.
class Way : public RelayEnds {
public:
    /// Before the clock starts: version `version` at the trainers, poison elsewhere.
    virtual Status prepare(std::uint64_t version) = 0;
    /// With the clock running, before messages move.
    virtual void begin() = 0;
    /// After the clock has stopped: what has arrived is right.
    virtual Status verify(std::uint64_t version) = 0;
    [[nodiscard]] virtual std::vector<RelayMessage> messages() const = 0;
};

class Broadcast final : public Way {
public:
    Broadcast(const Model& model, int rank) : model_(model), values_(model), rank_(rank) {}

    Status open(const TrainerLayout& trainer, const std::vector<WorkerLayout>& pools, std::int64_t segment) {
        SLUICE_ASSIGN_OR_RETURN(owners_, owners_of(model_, trainer));
        const int trainers = trainer.world_size();
        boxes_ = distinct_boxes(model_.catalogue, owners_);
        std::int64_t bytes = 0;
        for (const CatalogueTensor& tensor : model_.catalogue.tensors()) {
            offsets_.push_back(std::exchange(bytes, bytes + tensor.bytes()));
        }
        offsets_.push_back(bytes);
        if (rank_ < trainers) {
            SLUICE_ASSIGN_OR_RETURN(weights_, cli::TrainerWeights::allocate(
                                                  model_.catalogue, owners_[static_cast<std::size_t>(rank_)], values_));
        } else {
            SLUICE_RETURN_IF_ERROR(open_worker(pools, rank_ - trainers));
        }
        if (rank_ == 0 || rank_ >= trainers) {
            SLUICE_ASSIGN_OR_RETURN(full_, Buffer::allocate(bytes, MemoryKind::kHost));
        }
        plan_messages(trainers, pools, segment);
        return ok_status();
    }

    [[nodiscard]] std::vector<RelayMessage> messages() const override {
        std::vector<RelayMessage> out;
        for (const Message& message : list_) {
            out.push_back(message.gather < 0 ? message.segment
                                             : gathers_[static_cast<std::size_t>(message.gather)].message);
        }
        return out;
    }

    Status prepare(std::uint64_t version) override {
        if (weights_) {
            SLUICE_RETURN_IF_ERROR(weights_->write_version(version));
        } else {
            SLUICE_RETURN_IF_ERROR(parameters_->poison());
        }
        if (full_) {
            std::memset(full_->data(), 0xAB, full_->size());
        }
        return ok_status();
    }

    void begin() override { missing_ = expected_; }

    [[nodiscard]] bool ready(std::size_t index) const override {
        const Message& message = list_[index];
        return message.gather >= 0 || missing_[static_cast<std::size_t>(message.group)] == 0;
    }

    void fill(std::size_t index, std::span<std::byte> bytes) override {
        const Message& message = list_[index];
        if (message.gather >= 0) {
            pack_boxes(gathers_[static_cast<std::size_t>(message.gather)], weights_->bytes().data(), bytes);
            return;
        }
        if (message.first_of_group) {
            take_own(message.group);
        }
        std::memcpy(bytes.data(), full_->data() + message.at, bytes.size());
    }

    void take(std::size_t index, std::span<const std::byte> bytes) override {
        const Message& message = list_[index];
        if (message.gather >= 0) {
            unpack_boxes(gathers_[static_cast<std::size_t>(message.gather)], bytes,
                         [&](TensorId tensor) { return tensor_at(tensor); });
        } else {
            std::memcpy(full_->data() + message.at, bytes.data(), bytes.size());
        }
        if (--missing_[static_cast<std::size_t>(message.group)] == 0 && parameters_) {
            keep_part(message.group);
        }
    }

    Status verify(std::uint64_t version) override {
        return parameters_
                   ? cli::verify_full(model_.catalogue, demand_, Route{}, parameters_->store(), values_, version).status
                   : ok_status();
    }

private:
    struct Message {
        GroupId group = 0;
        int gather = -1;  ///< Which of gathers_, or none: a segment of the broadcast.
        RelayMessage segment;
        std::int64_t at = 0;
        bool first_of_group = false;
    };

    Status open_worker(const std::vector<WorkerLayout>& pools, int worker) {
        for (const WorkerLayout& pool : pools) {
            if (worker < pool.world_size()) {
                SLUICE_ASSIGN_OR_RETURN(demand_,
                                        dry_run(model_.catalogue, model_.config, pool, worker % pool.pool_size()));
                SLUICE_ASSIGN_OR_RETURN(parameters_, cli::WorkerParameters::allocate(demand_));
                records_.resize(static_cast<std::size_t>(model_.catalogue.groups()));
                for (CopyRecord record : demand_.records) {
                    record.copy = coalesce(record.copy, record.converts());
                    records_[static_cast<std::size_t>(model_.catalogue[record.tensor].group)].push_back(record);
                }
                return ok_status();
            }
            worker -= pool.world_size();
        }
        return internal_error("a worker rank is in no pool");
    }

    // The gather of a group is started before the broadcast of the one before it.
    void plan_messages(int trainers, const std::vector<WorkerLayout>& pools, std::int64_t segment) {
        std::vector<int> chain = {0};
        for (const WorkerLayout& pool : pools) {
            chain.resize(chain.size() + static_cast<std::size_t>(pool.world_size()));
        }
        std::iota(chain.begin() + 1, chain.end(), trainers);
        const int groups = model_.catalogue.groups();
        expected_.assign(static_cast<std::size_t>(groups), 0);
        own_.resize(static_cast<std::size_t>(groups));
        std::size_t box = 0;
        for (GroupId group = 0; group <= groups; ++group) {
            if (group < groups) {
                plan_gather(group, box, segment);
            }
            if (group > 0) {
                plan_broadcast(group - 1, chain, segment);
            }
        }
    }

    void plan_gather(GroupId group, std::size_t& box, std::int64_t segment) {
        const std::size_t first = gathers_.size();
        for (; box < boxes_.size() && model_.catalogue[boxes_[box].tensor].group == group; ++box) {
            const Box& one = boxes_[box];
            if (one.owner(0) != nullptr) {
                own_[static_cast<std::size_t>(group)].push_back(&one);
                continue;
            }
            // Replicas take turns.
            add_box(gathers_, first, {one.owners[box % one.owners.size()].rank, 0}, one, segment);
        }
        for (std::size_t i = first; i < gathers_.size(); ++i) {
            list_.push_back({group, static_cast<int>(i), {}, 0, false});
            if (rank_ == 0) {
                ++expected_[static_cast<std::size_t>(group)];
            }
        }
    }

    void plan_broadcast(GroupId group, const std::vector<int>& chain, std::int64_t segment) {
        const auto tensors = model_.catalogue.tensors();
        const auto range =
            std::equal_range(tensors.begin(), tensors.end(), CatalogueTensor{{}, DType::kBF16, {}, group, {}},
                             [](const auto& a, const auto& b) { return a.group < b.group; });
        const std::int64_t begin = offsets_[static_cast<std::size_t>(range.first - tensors.begin())];
        const std::int64_t end = offsets_[static_cast<std::size_t>(range.second - tensors.begin())];
        for (std::int64_t at = begin; at < end; at += segment) {
            list_.push_back({group, -1, {chain, std::min(segment, end - at)}, at, at == begin});
            if (rank_ == chain.back() || (rank_ != 0 && std::find(chain.begin(), chain.end(), rank_) != chain.end())) {
                ++expected_[static_cast<std::size_t>(group)];
            }
        }
    }

    [[nodiscard]] std::byte* tensor_at(TensorId tensor) const {
        return full_->data() + offsets_[static_cast<std::size_t>(tensor)];
    }

    void take_own(GroupId group) {
        for (const Box* box : own_[static_cast<std::size_t>(group)]) {
            strided_copy(box->owner(0)->copy, weights_->bytes().data(), tensor_at(box->tensor));
        }
    }

    void keep_part(GroupId group) {
        for (const CopyRecord& record : records_[static_cast<std::size_t>(group)]) {
            std::byte* to = parameters_->store().address(record.parameter);
            if (record.converts()) {
                converting_copy(record.copy, record.source_dtype, record.parameter_dtype, tensor_at(record.tensor), to);
            } else {
                strided_copy(record.copy, tensor_at(record.tensor), to);
            }
        }
    }

    const Model& model_;
    cli::WeightValues values_;
    int rank_;
    std::vector<Ownership> owners_;
    std::vector<Box> boxes_;
    std::vector<std::int64_t> offsets_;  // of each tensor in the packed model, and the end
    std::optional<cli::TrainerWeights> weights_;
    Demand demand_;
    std::optional<cli::WorkerParameters> parameters_;
    std::vector<std::vector<CopyRecord>> records_;  // by group
    std::optional<Buffer> full_;
    std::vector<BoxMessage> gathers_;
    std::vector<Message> list_;
    std::vector<std::vector<const Box*>> own_;  // by group: what rank 0 has itself
    std::vector<int> expected_;                 // by group: messages that this rank takes
    std::vector<int> missing_;
};

/// Trainers that gather among themselves, each box once around a ring of those that lack it.
class Regroup final : public Way {
public:
    Regroup(const Model& model, int rank) : model_(model), values_(model), rank_(static_cast<std::size_t>(rank)) {}

    Status open(const TrainerLayout& from, const TrainerLayout& into, std::int64_t segment) {
        SLUICE_ASSIGN_OR_RETURN(owners_, owners_of(model_, from));
        SLUICE_ASSIGN_OR_RETURN(wanted_, owners_of(model_, into));
        boxes_ = distinct_boxes(model_.catalogue, owners_);
        SLUICE_ASSIGN_OR_RETURN(weights_, cli::TrainerWeights::allocate(model_.catalogue, owners_[rank_], values_));
        SLUICE_ASSIGN_OR_RETURN(gathered_, cli::TrainerWeights::allocate(model_.catalogue, wanted_[rank_], values_));
        SLUICE_ASSIGN_OR_RETURN(right_, cli::TrainerWeights::allocate(model_.catalogue, wanted_[rank_], values_));
        places_.assign(model_.catalogue.size(), -1);
        std::vector<std::vector<char>> wants(wanted_.size(), std::vector<char>(model_.catalogue.size()));
        for (std::size_t rank = 0; rank < wanted_.size(); ++rank) {
            for (const OwnedRegion& region : wanted_[rank].regions) {
                const CatalogueTensor& tensor = model_.catalogue[region.tensor];
                const StridedCopy copy = coalesce(region_copy(region, tensor.shape, size_of(tensor.dtype)));
                if (copy.item != tensor.bytes()) {
                    return invalid_argument(fmt::format("--into {}: it cuts {}, but what is gathered must be whole",
                                                        into.to_string(), tensor.name));
                }
                wants[rank][static_cast<std::size_t>(region.tensor)] = 1;
                if (rank == rank_) {
                    places_[static_cast<std::size_t>(region.tensor)] = region.offset;
                }
            }
        }
        plan_messages(wants, segment);
        return ok_status();
    }

    [[nodiscard]] std::vector<RelayMessage> messages() const override {
        std::vector<RelayMessage> out;
        for (const BoxMessage& message : list_) {
            out.push_back(message.message);
        }
        return out;
    }

    Status prepare(std::uint64_t version) override {
        SLUICE_RETURN_IF_ERROR(weights_->write_version(version));
        std::memset(gathered_->bytes().data(), 0xAB, gathered_->bytes().size());
        return ok_status();
    }

    void begin() override {
        for (const Box& box : boxes_) {
            const Box::Owner* own = box.owner(static_cast<int>(rank_));
            if (own != nullptr && places_[static_cast<std::size_t>(box.tensor)] >= 0) {
                strided_copy(own->copy, weights_->bytes().data(), tensor_at(box.tensor));
            }
        }
    }

    [[nodiscard]] bool ready(std::size_t /*message*/) const override { return true; }

    void fill(std::size_t message, std::span<std::byte> bytes) override {
        pack_boxes(list_[message], weights_->bytes().data(), bytes);
    }

    void take(std::size_t message, std::span<const std::byte> bytes) override {
        unpack_boxes(list_[message], bytes, [&](TensorId tensor) { return tensor_at(tensor); });
    }

    Status verify(std::uint64_t version) override {
        SLUICE_RETURN_IF_ERROR(right_->write_version(version));
        for (const OwnedRegion& region : wanted_[rank_].regions) {
            const CatalogueTensor& tensor = model_.catalogue[region.tensor];
            if (std::memcmp(tensor_at(region.tensor), right_->bytes().data() + region.offset,
                            static_cast<std::size_t>(tensor.bytes())) != 0) {
                return Status(StatusCode::kMismatch, fmt::format("{} was not gathered right", tensor.name));
            }
        }
        return ok_status();
    }

private:
    void plan_messages(const std::vector<std::vector<char>>& wants, std::int64_t segment) {
        const int ranks = static_cast<int>(wants.size());
        std::size_t first = 0;
        GroupId group = 0;
        for (std::size_t i = 0; i < boxes_.size(); ++i) {
            const Box& box = boxes_[i];
            if (model_.catalogue[box.tensor].group != group) {
                group = model_.catalogue[box.tensor].group;
                first = list_.size();
            }
            std::vector<int> chain = {box.owners[i % box.owners.size()].rank};  // Replicas take turns.
            for (int step = 1; step < ranks; ++step) {
                const int rank = (chain.front() + step) % ranks;
                if (wants[static_cast<std::size_t>(rank)][static_cast<std::size_t>(box.tensor)] != 0 &&
                    box.owner(rank) == nullptr) {
                    chain.push_back(rank);
                }
            }
            if (chain.size() > 1) {
                add_box(list_, first, chain, box, segment);
            }
        }
    }

    [[nodiscard]] std::byte* tensor_at(TensorId tensor) {
        return gathered_->bytes().data() + places_[static_cast<std::size_t>(tensor)];
    }

    const Model& model_;
    cli::WeightValues values_;
    std::size_t rank_;
    std::vector<Ownership> owners_, wanted_;
    std::vector<Box> boxes_;
    std::optional<cli::TrainerWeights> weights_, gathered_, right_;
    std::vector<std::int64_t> places_;  // by tensor: where it is gathered, or -1
    std::vector<BoxMessage> list_;
};

Result<std::unique_ptr<Way>> open_way(const Options& options, const Model& model, const Bootstrap& bootstrap) {
    SLUICE_ASSIGN_OR_RETURN(const TrainerLayout trainer, options.layout.trainer_layout());
    SLUICE_ASSIGN_OR_RETURN(const std::int64_t segment, cli::parse_size("--segment", options.segment, 1));
    int ranks = trainer.world_size();
    std::optional<TrainerLayout> into;
    std::vector<WorkerLayout> pools;
    if (options.into.empty()) {
        SLUICE_ASSIGN_OR_RETURN(pools, options.layout.worker_layouts());
        for (const WorkerLayout& pool : pools) {
            ranks += pool.world_size();
        }
    } else {
        SLUICE_ASSIGN_OR_RETURN(into, TrainerLayout::parse(options.into));
        if (into->world_size() != ranks) {
            return invalid_argument(fmt::format("--into {}: it has {} ranks, but the trainer has {}; use as many",
                                                options.into, into->world_size(), ranks));
        }
    }
    if (bootstrap.size() != ranks) {
        return invalid_argument(fmt::format("the layouts need {} ranks, but {} were started; use mpirun -n {}", ranks,
                                            bootstrap.size(), ranks));
    }
    if (into) {
        auto way = std::make_unique<Regroup>(model, bootstrap.rank());
        SLUICE_RETURN_IF_ERROR(way->open(trainer, *into, segment));
        return std::unique_ptr<Way>(std::move(way));
    }
    auto way = std::make_unique<Broadcast>(model, bootstrap.rank());
    SLUICE_RETURN_IF_ERROR(way->open(trainer, pools, segment));
    return std::unique_ptr<Way>(std::move(way));
}

Status run_way(const Options& options, Bootstrap& bootstrap, const Model& model, nlohmann::json& out) {
    const auto deadline = [] { return Deadline::after(std::chrono::minutes(5)); };
    auto opened = open_way(options, model, bootstrap);
    SLUICE_RETURN_IF_ERROR(agree_on_status(bootstrap, opened.status(), deadline()));
    Way& way = **opened;
    const std::vector<RelayMessage> messages = way.messages();
    std::int64_t largest = 1;
    for (const RelayMessage& message : messages) {
        largest = std::max(largest, message.bytes);
    }
    SLUICE_ASSIGN_OR_RETURN(Buffer slots, Buffer::allocate(largest * options.window, MemoryKind::kHost));
    std::vector<double> seconds;
    for (int i = 0; i <= options.repetitions; ++i) {
        const auto version = static_cast<std::uint64_t>(i) + 1;
        SLUICE_RETURN_IF_ERROR(way.prepare(version));
        SLUICE_RETURN_IF_ERROR(bootstrap.barrier(deadline()));
        const Clock::time_point begin = Clock::now();
        way.begin();
        SLUICE_RETURN_IF_ERROR(relay(messages, options.window, slots.bytes(), way));
        SLUICE_RETURN_IF_ERROR(bootstrap.barrier(deadline()));
        if (i > 0) {  // The first opens connections.
            seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
        }
        SLUICE_RETURN_IF_ERROR(agree_on_status(bootstrap, way.verify(version), deadline()));
    }
    out["seconds"] = seconds;
    out["median_s"] = median(seconds);
    out["messages"] = messages.size();
    return ok_status();
}

cli::ExitCode run(const Options& options) {
    const auto mpi = MpiBootstrap::create();
    if (!mpi.ok()) {
        return cli::report(mpi.status());
    }
    Bootstrap& bootstrap = **mpi;
    nlohmann::json out = {{"schema", 1},
                          {"bench", options.into.empty() ? "broadcast" : "regroup"},
                          {"segment", options.segment},
                          {"window", options.window}};
    const auto model = cli::open_model(options.layout.model_choice());
    Status status = model.ok() ? run_way(options, bootstrap, *model, out) : model.status();
    if (status.ok() && bootstrap.rank() == 0) {
        out["bytes"] = model->catalogue.bytes();
        fmt::print(stderr, "{}: {:.3f} s\n", out["bench"].get<std::string>(), out["median_s"].get<double>());
        status = cli::Output(options.json).write_json(out);
    }
    // Before MPI ends: mpirun kills the others once one has ended badly.
    const cli::ExitCode code = bootstrap.rank() == 0 ? cli::report(status) : cli::exit_code(status.code());
    (*mpi)->finalize();
    return code;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
    sluice::bench::Options options;
    CLI::App app(
        "Broadcasts gathered tensors from rank 0 to all workers, or gathers among trainers, by MPI; under mpirun");
    options.layout.add_to(app);
    app.add_option("--into", options.into, "Gather among the trainers, until they hold this layout")
        ->type_name("LAYOUT");
    app.add_option("--segment", options.segment, "Most bytes of a message; a larger tensor that is cut goes as one")
        ->capture_default_str();
    app.add_option("--window", options.window, "Messages under way at a rank")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
    app.add_option("--repetitions", options.repetitions, "One more warms up")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--json", options.json, "Write the results as JSON to FILE")->type_name("FILE");
    CLI11_PARSE(app, argc, argv);
    return sluice::bench::run(options);
}

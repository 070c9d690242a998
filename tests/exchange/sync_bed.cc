#include "tests/exchange/sync_bed.h"

#include "planner/builtin_models.h"
#include "planner/dry_run.h"
#include "runtime/exchange/bootstrap_in_process.h"
#include "runtime/services/copy_engine.h"
#include "runtime/services/tensor_values.h"
#include "trainer/gathered_source.h"
#include "trainer/resident_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace sluice::test {
namespace {

constexpr auto kPoison = std::byte{0xAB};
constexpr std::int64_t kAlignment = 64;

template <class T>
T must(Result<T> result) {
    if (!result.ok()) {
        throw std::runtime_error("test bed: " + result.status().message());
    }
    return std::move(result).value();
}

const std::vector<std::pair<std::string, std::string>>& small_qwen3_moe_fields() {
    static const std::vector<std::pair<std::string, std::string>> fields = {{"num_hidden_layers", "3"},
                                                                            {"hidden_size", "64"},
                                                                            {"num_attention_heads", "8"},
                                                                            {"num_key_value_heads", "2"},
                                                                            {"head_dim", "8"},
                                                                            {"vocab_size", "250"},
                                                                            {"num_experts", "8"},
                                                                            {"moe_intermediate_size", "32"},
                                                                            {"intermediate_size", "64"}};
    return fields;
}

ModelConfig config_of(const BedOptions& options) {
    ModelConfig config = must(builtin_model(options.model)).config;
    for (const auto& [key, value] : options.fields.empty() ? small_qwen3_moe_fields() : options.fields) {
        if (const Status set = config.set(key, value); !set.ok()) {
            throw std::runtime_error("test bed: " + set.message());
        }
    }
    return config;
}

}  // namespace

Settings bed_settings() {
    Settings settings;
    settings.chunk_bytes = 4096;
    settings.staging_bytes = 1 << 20;
    settings.inflight_bytes = 1 << 20;
    settings.slots = 4;
    settings.copy_at_once_bytes = 0;  // Chunks are small here; without this the copy threads would have nothing to do.
    settings.connect_timeout = std::chrono::seconds(20);
    settings.sync_timeout = std::chrono::seconds(20);
    // A busy machine may keep a thread waiting for long.
    settings.heartbeat_dead_after = std::chrono::seconds(10);
    return settings;
}

BedModel::BedModel(const BedOptions& options)
    : config(config_of(options)),
      catalogue(must(checkpoint_catalogue(config))),
      trainer(must(TrainerLayout::parse(options.trainer))) {
    trainers = trainer.world_size();
    for (const std::string& text : options.workers) {
        pools.push_back(must(WorkerLayout::parse(text)));
        workers += pools.back().world_size();
    }
}

std::vector<std::byte> BedModel::tensor(TensorId id, std::uint64_t version) const {
    const CatalogueTensor& t = catalogue[id];
    std::vector<std::byte> out(static_cast<std::size_t>(t.bytes()));
    fill_generated(name_hash(t.tied_to.empty() ? t.name : t.tied_to), t.dtype, 0, t.elements(),
                   static_cast<std::int64_t>(version), out.data());
    return out;
}

std::vector<std::vector<std::byte>> BedModel::parameters(const Demand& demand, std::uint64_t version) const {
    std::vector<std::vector<std::byte>> out;
    for (const Parameter& parameter : demand.parameters) {
        out.emplace_back(static_cast<std::size_t>(parameter.bytes()), kPoison);
    }
    for (const ZeroFill& fill : demand.fills) {
        for_each_item(fill.box, [&](std::int64_t, std::int64_t at) {
            std::memset(out[static_cast<std::size_t>(fill.parameter)].data() + at, 0,
                        static_cast<std::size_t>(fill.box.item));
        });
    }
    for (const CopyRecord& record : demand.records) {
        const std::vector<std::byte> source = tensor(record.tensor, version);
        std::byte* to = out[static_cast<std::size_t>(record.parameter)].data();
        if (record.converts()) {
            converting_copy(record.copy, record.source_dtype, record.parameter_dtype, source.data(), to);
            continue;
        }
        for_each_item(record.copy, [&](std::int64_t src, std::int64_t dst) {
            std::memcpy(to + dst, source.data() + src, static_cast<std::size_t>(record.copy.item));
        });
    }
    return out;
}

BedRank::BedRank(const BedOptions& options, const BedModel& model, int world_rank)
    : options_(options), model_(model), world_rank_(world_rank) {
    worker_options.route = trainer_options.route = options.route;
    worker_options.verify_hashes = trainer_options.verify_hashes = options.hashes;
}

Status BedRank::prepare_trainer() {
    SLUICE_ASSIGN_OR_RETURN(
        offered_, trainer_ownership(model_.catalogue, model_.config, model_.trainer, own_rank(), options_.source));
    SLUICE_ASSIGN_OR_RETURN(stored_, shard_ownership(model_.catalogue, model_.config, model_.trainer, own_rank()));
    SLUICE_ASSIGN_OR_RETURN(const auto place,
                            place_memory(stored_.segment_bytes.empty() ? 0 : stored_.segment_bytes.front()));
    std::vector<WeightSource::Segment> segments = {
        {place.first, static_cast<std::int64_t>(memory_->size()) - missing_bytes, place.second}};
    if (options_.source == SourceKind::kResident) {
        source_ = std::make_unique<ResidentSource>(std::move(segments));
        return ok_status();
    }
    SLUICE_ASSIGN_OR_RETURN(GatherDemand gather,
                            gather_demand(model_.catalogue, model_.config, model_.trainer, own_rank()));
    if (options_.open_group) {
        group_ = options_.open_group(own_rank());
    }
    source_ = std::make_unique<GatheredSource>(
        std::move(segments), RankInput::Gather{stored_, std::move(gather)}, offered_.gathered_bytes,
        GatheredSource::Options{options_.hashes, options_.settings.staging_bytes, group_.get()});
    return ok_status();
}

Status BedRank::prepare_worker() {
    int first = 0;
    int first_key = 0;
    for (const WorkerLayout& pool : model_.pools) {
        if (own_rank() < first + pool.world_size()) {
            const int pool_rank = (own_rank() - first) % pool.pool_size();
            demand_key_ = first_key + pool_rank;
            SLUICE_ASSIGN_OR_RETURN(demand_, dry_run(model_.catalogue, model_.config, pool, pool_rank));
            break;
        }
        first += pool.world_size();
        first_key += pool.pool_size();
    }
    if (change_demand) {
        change_demand(demand_);
    }
    const std::vector<ParameterId> in_buffers = buffered ? buffered(*this) : std::vector<ParameterId>();
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < demand_.parameters.size(); ++i) {
        if (std::find(in_buffers.begin(), in_buffers.end(), static_cast<ParameterId>(i)) != in_buffers.end()) {
            store_.places.push_back(ParameterStore::in_layer_buffer());
            continue;
        }
        const Parameter& parameter = demand_.parameters[i];
        store_.places.push_back({0, bytes});
        bytes += (parameter.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
    SLUICE_ASSIGN_OR_RETURN(const auto place, place_memory(bytes));
    store_.blocks.push_back({place.first, bytes, place.second});
    return ok_status();
}

Result<std::pair<std::byte*, MemoryKind>> BedRank::place_memory(std::int64_t bytes) {
    SLUICE_ASSIGN_OR_RETURN(memory_, Buffer::allocate(bytes, MemoryKind::kHost));
    if (device_ == nullptr) {
        return std::pair(memory_->data(), MemoryKind::kHost);
    }
    SLUICE_ASSIGN_OR_RETURN(device_memory_, allocate_on_device(*device_, bytes));
    return std::pair(device_memory_->data(), MemoryKind::kCuda);
}

void BedRank::upload() {
    if (device_ != nullptr) {
        const Status copied = device_->copy(device_memory_->data(), memory_->data(), memory_->size(), 0);
        EXPECT_TRUE(copied.ok()) << copied.message();
    }
}

Status BedRank::create(Bootstrap& bootstrap, const Session::TransportFactory& open_transport) {
    if (options_.open_device) {
        device_ = options_.open_device(world_rank_, !is_trainer());
    }
    SLUICE_ASSIGN_OR_RETURN(session_, Session::open(options_.settings, open_transport, device_.get()));
    if (options_.trace) {
        session_->record_trace(1 << 16);
    }
    const Status prepared = is_trainer() ? prepare_trainer() : prepare_worker();
    if (is_trainer()) {
        SLUICE_ASSIGN_OR_RETURN(trainer_, Trainer::create(*session_, bootstrap, model_.catalogue, own_rank(), prepared,
                                                          offered_, source_.get(), trainer_options));
    } else {
        SLUICE_ASSIGN_OR_RETURN(worker_, Worker::create(*session_, bootstrap, model_.catalogue, own_rank(), demand_key_,
                                                        prepared, demand_, store_, hooks, worker_options));
    }
    return ok_status();
}

void BedRank::prepare(std::uint64_t version) {
    if (!is_trainer()) {
        std::fill(memory().begin(), memory().end(), kPoison);
        for (const ZeroFill& fill : demand_.fills) {
            for_each_item(fill.box, [&](std::int64_t, std::int64_t at) {
                std::memset(host_parameter(fill.parameter) + at, 0, static_cast<std::size_t>(fill.box.item));
            });
        }
        upload();
        return;
    }
    for (const OwnedRegion& region : stored_.regions) {
        const CatalogueTensor& t = model_.catalogue[region.tensor];
        const std::vector<std::byte> whole = model_.tensor(region.tensor, version);
        const StridedCopy box = region_copy(region, t.shape, size_of(t.dtype));
        for_each_item(box, [&](std::int64_t src, std::int64_t dst) {
            std::memcpy(memory_->data() + dst, whole.data() + src, static_cast<std::size_t>(box.item));
        });
    }
    upload();
}

Status BedRank::sync(std::uint64_t version, void* stream_or_event) {
    return is_trainer() ? trainer_->sync(version, stream_or_event) : worker_->sync(version, stream_or_event);
}

void BedRank::close() {
    if (trainer_) {
        trainer_->close();
    }
    if (worker_) {
        worker_->close();
    }
}

std::vector<std::string> BedRank::wrong_parameters(std::uint64_t version) {
    std::vector<std::string> wrong;
    if (device_ != nullptr) {
        const Status copied = device_->copy(memory_->data(), device_memory_->data(), memory_->size(), 0);
        EXPECT_TRUE(copied.ok()) << copied.message();
    }
    const auto expected = model_.parameters(demand_, version);
    for (std::size_t i = 0; i < expected.size(); ++i) {
        if (!store_.buffered(static_cast<ParameterId>(i)) &&
            std::memcmp(expected[i].data(), host_parameter(static_cast<ParameterId>(i)), expected[i].size()) != 0) {
            wrong.push_back(demand_.parameters[i].name);
        }
    }
    return wrong;
}

Session::TransportFactory ucx_factory(Network network) {
    return [network](EventLoop& loop) { return transport::open_ucx_transport(loop, ucx_options(network)); };
}

SyncBed::SyncBed(BedOptions options, Network network)
    : options_(std::move(options)), model_(options_), network_(network) {
    transport::FakeLink link;
    link.link_class = expected_class(network);
    fabric_.set_default_link(link);
    fake_ids_.resize(static_cast<std::size_t>(model_.ranks()));
    create_took_.resize(fake_ids_.size());
    for (int rank = 0; rank < model_.ranks(); ++rank) {
        ranks_.push_back(std::make_unique<BedRank>(options_, model_, rank));
    }
}

SyncBed::~SyncBed() {
    close();
    // Its threads use the fabric.
    ranks_.clear();
}

void SyncBed::each_rank(const std::function<void(BedRank&)>& work) {
    std::vector<std::thread> threads;
    for (auto& rank : ranks_) {
        threads.emplace_back([&work, &rank] { work(*rank); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

std::vector<Status> SyncBed::try_create() {
    bootstraps_ = in_process_bootstraps(size());
    std::vector<Status> out(ranks_.size());
    each_rank([&](BedRank& rank) {
        const auto place = static_cast<std::size_t>(rank.world_rank());
        const Session::TransportFactory fake = [&](EventLoop& loop) -> Result<std::unique_ptr<transport::Transport>> {
            transport::FakeFabric::Opened opened = fabric_.open(loop);
            fake_ids_[place] = opened.id;
            return std::move(opened.transport);
        };
        const auto begin = std::chrono::steady_clock::now();
        delay_create(rank.world_rank());
        out[place] = rank.create(*bootstraps_[place], is_ucx(network_) ? ucx_factory(network_) : fake);
        create_took_[place] = std::chrono::steady_clock::now() - begin;
    });
    return out;
}

void SyncBed::create() {
    for (const Status& status : try_create()) {
        ASSERT_TRUE(status.ok()) << status.message();
    }
}

std::vector<Status> SyncBed::try_sync(std::uint64_t version, const std::vector<int>& without) {
    std::vector<Status> out(ranks_.size());
    each_rank([&](BedRank& rank) {
        if (std::find(without.begin(), without.end(), rank.world_rank()) == without.end()) {
            rank.prepare(version);
            out[static_cast<std::size_t>(rank.world_rank())] = rank.sync(version);
        }
    });
    return out;
}

void SyncBed::sync(std::uint64_t version) {
    const std::vector<Status> statuses = try_sync(version);
    for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
        EXPECT_TRUE(statuses[rank].ok()) << "version " << version << " on rank " << rank << ": "
                                         << statuses[rank].message();
    }
    expect_right(version);
}

void SyncBed::expect_right(std::uint64_t version) {
    for (int i = 0; i < model_.workers; ++i) {
        EXPECT_EQ(worker(i).worker().version(), version) << "worker " << i;
        EXPECT_FALSE(worker(i).worker().dirty()) << "worker " << i;
        EXPECT_EQ(worker(i).wrong_parameters(version), std::vector<std::string>{})
            << "version " << version << ", worker " << i;
    }
}

void SyncBed::close() {
    if (!std::exchange(closed_, true)) {
        each_rank([](BedRank& rank) { rank.close(); });
    }
}

}  // namespace sluice::test

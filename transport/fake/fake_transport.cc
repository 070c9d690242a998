#include "transport/fake/fake_transport.h"

#include "transport/node_pool.h"
#include "transport/sealed.h"

#include <boost/intrusive/list.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace sluice::transport {
namespace {

using Clock = EventLoop::Clock;
using RegionId = std::uint64_t;

constexpr std::string_view kAddressKind = "FKAD";
constexpr std::string_view kKeyKind = "FKKY";
constexpr std::size_t kMaxMessageBytes = 4096;

class FakeTransport;
class FakeEndpoint;

// Something on its way to completion on the loop of the transport that started it.
struct Operation : boost::intrusive::list_base_hook<> {
    Clock::time_point due;
    FakeEndpoint* endpoint = nullptr;
    Completion* completion = nullptr;
    Status status;
    // A get has a destination; a send is complete once it is due.
    std::byte* local = nullptr;
    std::size_t size = 0;
    std::uint64_t remote_address = 0;
    RegionId region = 0;
    // Tells a late answer to a former operation in the same node from the one that is awaited.
    std::uint64_t generation = 0;
    Operation* next_free = nullptr;
};

// Something on its way from one transport to another.
struct Parcel : boost::intrusive::list_base_hook<> {
    // Room for any message from the start: which parcel carries one for the first time depends on the threads.
    Parcel() { bytes.reserve(kMaxMessageBytes); }
    enum class Kind { kMessage, kServe, kServed };
    Kind kind = Kind::kMessage;
    FakeId from = 0;
    Clock::time_point due;
    std::vector<std::byte> bytes;  // Header, then payload.
    std::size_t header_size = 0;
    Operation* operation = nullptr;
    std::uint64_t generation = 0;
    Parcel* next_free = nullptr;
};

template <class Node>
void insert_by_due(boost::intrusive::list<Node>& list, Node& node) {
    auto at = list.end();
    while (at != list.begin() && std::prev(at)->due > node.due) {
        --at;
    }
    list.insert(at, node);
}

}  // namespace

struct FakeFabric::Impl {
    // Brings a transport's loop to look after it. Belongs to the fabric, since it may still be posted when the transport
    // is gone.
    struct Pump final : LoopTask {
        void run() override;
        FakeTransport* transport = nullptr;  // On its loop only.
        std::atomic<bool> posted{false};
    };

    struct Region {
        FakeId owner;
        std::byte* data;
        std::size_t size;
    };

    FakeLink link(FakeId owner, FakeId reader) const {
        const auto found = links.find({owner, reader});
        return found == links.end() ? default_link : found->second;
    }

    std::mutex mutex;  // Guards everything but `done`, and the inboxes of the transports.
    FakeId last_id = 0;
    std::map<FakeId, FakeTransport*> transports;
    std::set<FakeId> dead;
    std::set<FakeId> frozen;
    RegionId last_region = 0;
    std::map<RegionId, Region> regions;
    FakeLink default_link;
    std::atomic<bool> device_memory = false;
    MemoryKind probed = MemoryKind::kHost;
    std::map<std::pair<FakeId, FakeId>, FakeLink> links;
    std::map<FakeId, int> gets_until_failure;
    std::map<std::pair<FakeId, FakeId>, int> drops;
    NodePool<Parcel> parcels{256};  // more than a test has out at once: when the pool would grow depends on the threads
    std::deque<Pump> pumps;
    std::atomic<std::uint64_t> done{0};
};

namespace {

class FakeRegion final : public MemoryRegion {
public:
    FakeRegion(std::shared_ptr<FakeFabric::Impl> fabric, FakeId owner, std::span<std::byte> memory, MemoryKind kind,
               Access access)
        : fabric_(std::move(fabric)), memory_(memory), kind_(kind), access_(access) {
        const std::lock_guard<std::mutex> lock(fabric_->mutex);
        id_ = ++fabric_->last_region;
        if (access == Access::kRemoteRead && !memory.empty()) {
            fabric_->regions[id_] = {owner, memory.data(), memory.size()};
        }
    }
    ~FakeRegion() override {
        const std::lock_guard<std::mutex> lock(fabric_->mutex);
        fabric_->regions.erase(id_);
    }

    [[nodiscard]] std::byte* data() const override { return memory_.data(); }
    [[nodiscard]] std::size_t size() const override { return memory_.size(); }
    [[nodiscard]] MemoryKind kind() const override { return kind_; }
    [[nodiscard]] std::vector<std::byte> packed_key() const override {
        if (access_ == Access::kLocal) {
            return {};
        }
        std::vector<std::byte> content;
        append_u64(content, id_);
        return seal(kKeyKind, content);
    }

private:
    std::shared_ptr<FakeFabric::Impl> fabric_;
    std::span<std::byte> memory_;
    MemoryKind kind_;
    Access access_;
    RegionId id_;
};

class FakeKey final : public RemoteKey {
public:
    explicit FakeKey(RegionId region) : region_(region) {}
    [[nodiscard]] RegionId region() const { return region_; }

private:
    RegionId region_;
};

class FakeEndpoint final : public Endpoint {
public:
    FakeEndpoint(FakeTransport& transport, FakeId remote, int peer, PeerLostHandler on_lost)
        : transport_(transport), remote_(remote), peer_(peer), on_lost_(std::move(on_lost)) {}
    ~FakeEndpoint() override;

    void get(std::byte* local, std::size_t size, const MemoryRegion& region, std::uint64_t remote_address,
             const RemoteKey& key, Completion& completion) override;
    void send(std::span<const std::byte> header, std::span<const std::byte> payload, Completion& completion) override;
    Result<std::unique_ptr<RemoteKey>> unpack_key(std::span<const std::byte> packed) override;
    [[nodiscard]] LinkInfo link() const override;
    void close(bool force, Completion& completion) override;

private:
    friend class FakeTransport;

    // Why nothing can be started here any more, or ok.
    [[nodiscard]] Status refusal() const;

    FakeTransport& transport_;
    const FakeId remote_;
    const int peer_;
    PeerLostHandler on_lost_;
    bool lost_ = false;
    bool closing_ = false;
    int in_flight_ = 0;
    Clock::time_point last_message_due_;
    std::vector<Completion*> closers_;
};

class FakeTransport final : public Transport {
public:
    FakeTransport(std::shared_ptr<FakeFabric::Impl> fabric, EventLoop& loop)
        : fabric_(std::move(fabric)), loop_(loop), timer_(loop, [this] { pump(); }) {
        assert(loop_.on_loop_thread());
        const std::lock_guard<std::mutex> lock(fabric_->mutex);
        id_ = ++fabric_->last_id;
        fabric_->transports[id_] = this;
        pump_ = &fabric_->pumps.emplace_back();
        pump_->transport = this;
    }

    // Peers see this as they see the end of a process.
    ~FakeTransport() override {
        assert(loop_.on_loop_thread() && endpoints_.empty());
        pump_->transport = nullptr;
        const std::lock_guard<std::mutex> lock(fabric_->mutex);
        fabric_->transports.erase(id_);
        fabric_->dead.insert(id_);
        give_back_all(inbox_);
        give_back_all(arrived_);
        for (const auto& [id, transport] : fabric_->transports) {
            transport->schedule();
        }
    }

    [[nodiscard]] FakeId id() const { return id_; }

    [[nodiscard]] std::vector<std::byte> address() const override {
        std::vector<std::byte> content;
        append_u64(content, id_);
        return seal(kAddressKind, content);
    }

    [[nodiscard]] std::size_t max_message_bytes() const override { return kMaxMessageBytes; }

    void set_message_handler(MessageHandler handler) override { handler_ = std::move(handler); }

    Result<std::unique_ptr<MemoryRegion>> register_memory(std::span<std::byte> memory, MemoryKind kind,
                                                          Access access) override {
        if (kind == MemoryKind::kCuda && !fabric_->device_memory) {
            return Status(StatusCode::kInvalidArgument,
                          "the in-process transport has host memory only; register it as host or pinned");
        }
        return std::unique_ptr<MemoryRegion>(std::make_unique<FakeRegion>(fabric_, id_, memory, kind, access));
    }

    Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> address, int peer,
                                              PeerLostHandler on_lost) override {
        SLUICE_ASSIGN_OR_RETURN(std::span<const std::byte> content, unseal(kAddressKind, "address", address));
        FakeId remote = 0;
        if (!take_u64(content, remote)) {
            return invalid_argument("the peer's address is empty");
        }
        auto endpoint = std::make_unique<FakeEndpoint>(*this, remote, peer, std::move(on_lost));
        endpoints_.push_back(endpoint.get());
        schedule();  // The peer may be dead already.
        return std::unique_ptr<Endpoint>(std::move(endpoint));
    }

    // Any thread.
    void schedule() {
        if (!pump_->posted.exchange(true)) {
            loop_.post(*pump_);
        }
    }

    // Moves everything on that is due. Each callback may start, close and destroy things, so nothing is kept across one.
    void pump() {
        take_inbox();
        tell_of_lost_peers();
        while (handle_next_parcel() || complete_next_operation() || complete_next_close()) {
        }
        Clock::time_point next = Clock::time_point::max();
        if (!operations_.empty()) {
            next = std::min(next, operations_.front().due);
        }
        if (!arrived_.empty() && !frozen_) {
            next = std::min(next, arrived_.front().due);
        }
        if (next != Clock::time_point::max()) {
            timer_.start(std::max(next - Clock::now(), Clock::duration::zero()));
        }
    }

private:
    friend class FakeEndpoint;

    using Parcels = boost::intrusive::list<Parcel>;

    void give_back_all(Parcels& parcels) {
        parcels.clear_and_dispose([this](Parcel* parcel) { fabric_->parcels.give_back(parcel); });
    }

    // Under the fabric's lock. `fill` completes the parcel. Nothing happens when the target is gone.
    template <class Fill>
    void post_parcel(FakeId to, Clock::time_point due, Fill&& fill) {
        const auto target = fabric_->transports.find(to);
        if (target == fabric_->transports.end() || fabric_->dead.contains(to) || fabric_->dead.contains(id_)) {
            return;
        }
        Parcel* parcel = fabric_->parcels.take();
        parcel->from = id_;
        parcel->due = due;
        fill(*parcel);
        target->second->inbox_.push_back(*parcel);
        target->second->schedule();
    }

    void take_inbox() {
        const std::lock_guard<std::mutex> lock(fabric_->mutex);
        while (!inbox_.empty()) {
            Parcel& parcel = inbox_.front();
            inbox_.pop_front();
            insert_by_due(arrived_, parcel);
        }
        frozen_ = fabric_->frozen.contains(id_);
        if (fabric_->dead.contains(id_)) {
            give_back_all(arrived_);
        }
    }

    void tell_of_lost_peers() {
        for (std::size_t i = 0; i < endpoints_.size(); ++i) {
            FakeEndpoint& endpoint = *endpoints_[i];
            if (endpoint.lost_) {
                continue;
            }
            {
                const std::lock_guard<std::mutex> lock(fabric_->mutex);
                endpoint.lost_ = fabric_->dead.contains(endpoint.remote_);
            }
            if (endpoint.lost_) {
                const Status cause = peer_lost("the peer died", endpoint.peer_);
                fail_operations(endpoint, cause);
                if (!endpoint.closing_ && endpoint.on_lost_) {
                    i = static_cast<std::size_t>(-1);  // The callback may change the list; those told are marked.
                    endpoint.on_lost_(cause);
                }
            }
        }
    }

    // Lets what is in flight on `endpoint` end now.
    void fail_operations(const FakeEndpoint& endpoint, const Status& cause) {
        for (auto at = operations_.begin(); at != operations_.end();) {
            Operation& operation = *at++;
            if (operation.endpoint == &endpoint && operation.status.ok()) {
                operations_.erase(operations_.iterator_to(operation));
                operation.status = cause;
                operation.due = Clock::time_point::min();
                operation.generation++;
                insert_by_due(operations_, operation);
            }
        }
    }

    bool handle_next_parcel() {
        if (frozen_ || arrived_.empty() || arrived_.front().due > Clock::now()) {
            return false;
        }
        Parcel& parcel = arrived_.front();
        arrived_.pop_front();
        switch (parcel.kind) {
            case Parcel::Kind::kMessage:
                if (handler_) {
                    const std::span<const std::byte> bytes(parcel.bytes);
                    handler_(bytes.first(parcel.header_size), bytes.subspan(parcel.header_size));
                }
                break;
            case Parcel::Kind::kServe: {
                const std::lock_guard<std::mutex> lock(fabric_->mutex);
                post_parcel(parcel.from, Clock::now(), [&](Parcel& answer) {
                    answer.kind = Parcel::Kind::kServed;
                    answer.operation = parcel.operation;
                    answer.generation = parcel.generation;
                });
                break;
            }
            case Parcel::Kind::kServed:
                // Operations never leave their pool, so that a late answer finds its node, of another generation.
                if (parcel.operation->generation == parcel.generation) {
                    operations_.erase(operations_.iterator_to(*parcel.operation));
                    schedule_get(*parcel.operation, Clock::duration::zero());
                }
                break;
        }
        const std::lock_guard<std::mutex> lock(fabric_->mutex);
        fabric_->parcels.give_back(&parcel);
        return true;
    }

    // All gets of a reader share its bandwidth, one after the other.
    void schedule_get(Operation& operation, Clock::duration latency) {
        FakeLink link;
        {
            const std::lock_guard<std::mutex> lock(fabric_->mutex);
            link = fabric_->link(operation.endpoint->remote_, id_);
        }
        const Clock::time_point now = Clock::now();
        operation.due = now + latency;
        if (link.bytes_per_second > 0) {
            const std::chrono::duration<double> needed(static_cast<double>(operation.size) / link.bytes_per_second);
            busy_until_ = std::max(busy_until_, now) + std::chrono::duration_cast<Clock::duration>(needed);
            operation.due = busy_until_ + latency;
        }
        insert_by_due(operations_, operation);
    }

    bool complete_next_operation() {
        if (operations_.empty() || operations_.front().due > Clock::now()) {
            return false;
        }
        Operation& operation = operations_.front();
        operations_.pop_front();
        Status status = std::move(operation.status);
        if (status.ok() && operation.local != nullptr) {
            status = read(operation);
        }
        Completion* completion = operation.completion;
        --operation.endpoint->in_flight_;
        operation.generation++;
        operation_pool_.give_back(&operation);
        completion->complete(status);
        return true;
    }

    Status read(const Operation& operation) {
        const std::lock_guard<std::mutex> lock(fabric_->mutex);
        const auto found = fabric_->regions.find(operation.region);
        if (found == fabric_->regions.end() || found->second.owner != operation.endpoint->remote_) {
            return {StatusCode::kPeerLost, "the peer's memory is not registered any more", operation.endpoint->peer_};
        }
        const auto begin = reinterpret_cast<std::uint64_t>(found->second.data);
        if (operation.remote_address < begin || operation.size > found->second.size ||
            operation.remote_address - begin > found->second.size - operation.size) {
            return invalid_argument(fmt::format("get of {} bytes is outside of the peer's region of {} bytes",
                                                operation.size, found->second.size));
        }
        std::memcpy(operation.local, found->second.data + (operation.remote_address - begin), operation.size);
        fabric_->done.fetch_add(1, std::memory_order_relaxed);
        return ok_status();
    }

    bool complete_next_close() {
        for (std::size_t i = 0; i < endpoints_.size(); ++i) {
            FakeEndpoint& endpoint = *endpoints_[i];
            if (endpoint.closing_ && endpoint.in_flight_ == 0 && !endpoint.closers_.empty()) {
                Completion* closer = endpoint.closers_.back();
                endpoint.closers_.pop_back();
                closer->complete(ok_status());  // May destroy the endpoint.
                return true;
            }
        }
        return false;
    }

    Operation& new_operation(FakeEndpoint& endpoint, Completion& completion) {
        Operation& operation = *operation_pool_.take();
        operation.endpoint = &endpoint;
        operation.completion = &completion;
        operation.status = endpoint.refusal();
        operation.local = nullptr;
        operation.due = Clock::time_point::min();
        ++endpoint.in_flight_;
        return operation;
    }

    std::shared_ptr<FakeFabric::Impl> fabric_;
    EventLoop& loop_;
    FakeId id_ = 0;
    FakeFabric::Impl::Pump* pump_ = nullptr;
    EventLoop::Timer timer_;
    MessageHandler handler_;
    std::vector<FakeEndpoint*> endpoints_;
    NodePool<Operation> operation_pool_{64};
    boost::intrusive::list<Operation> operations_;  // By due time; gets that wait for their owner at the end.
    Clock::time_point busy_until_;
    Parcels inbox_;    // Under the fabric's lock.
    Parcels arrived_;  // By due time.
    bool frozen_ = false;
};

FakeEndpoint::~FakeEndpoint() {
    assert(closing_ && in_flight_ == 0 && "close an endpoint and wait for the completion before destroying it");
    std::erase(transport_.endpoints_, this);
}

Status FakeEndpoint::refusal() const {
    if (closing_) {
        return {StatusCode::kAborted, "the endpoint was closed", peer_};
    }
    return lost_ ? peer_lost("the peer died", peer_) : ok_status();
}

void FakeEndpoint::get(std::byte* local, std::size_t size, const MemoryRegion& region, std::uint64_t remote_address,
                       const RemoteKey& key, Completion& completion) {
    assert(transport_.loop_.on_loop_thread());
    assert(size > 0 && local >= region.data() && local + size <= region.data() + region.size());
    (void)region;
    Operation& operation = transport_.new_operation(*this, completion);
    operation.local = local;
    operation.size = size;
    operation.remote_address = remote_address;
    operation.region = static_cast<const FakeKey&>(key).region();
    FakeLink link;
    {
        FakeFabric::Impl& fabric = *transport_.fabric_;
        const std::lock_guard<std::mutex> lock(fabric.mutex);
        link = fabric.link(remote_, transport_.id_);
        const auto ordered = fabric.gets_until_failure.find(transport_.id_);
        if (operation.status.ok() && ordered != fabric.gets_until_failure.end() && ordered->second > 0 &&
            --ordered->second == 0) {
            operation.status = Status(StatusCode::kPeerLost, "a get was made to fail", peer_);
        }
        if (operation.status.ok() && link.link_class == LinkClass::kEmulated) {
            transport_.post_parcel(remote_, Clock::now() + link.latency, [&](Parcel& parcel) {
                parcel.kind = Parcel::Kind::kServe;
                parcel.operation = &operation;
                parcel.generation = operation.generation;
            });
            operation.due = Clock::time_point::max();
        }
    }
    if (operation.status.ok() && link.link_class == LinkClass::kOneSided) {
        transport_.schedule_get(operation, link.latency);
    } else {
        insert_by_due(transport_.operations_, operation);
    }
    transport_.schedule();
}

void FakeEndpoint::send(std::span<const std::byte> header, std::span<const std::byte> payload, Completion& completion) {
    assert(transport_.loop_.on_loop_thread());
    Operation& operation = transport_.new_operation(*this, completion);
    if (operation.status.ok() && header.size() + payload.size() > kMaxMessageBytes) {
        operation.status =
            invalid_argument(fmt::format("a message of {} bytes is over the limit of {}; send it in parts",
                                         header.size() + payload.size(), kMaxMessageBytes));
    }
    if (operation.status.ok()) {
        FakeFabric::Impl& fabric = *transport_.fabric_;
        const std::lock_guard<std::mutex> lock(fabric.mutex);
        const auto dropped = fabric.drops.find({transport_.id_, remote_});
        if (dropped != fabric.drops.end() && dropped->second > 0) {
            --dropped->second;
        } else {
            // A link that became faster must not let a message overtake another.
            last_message_due_ =
                std::max(last_message_due_, Clock::now() + fabric.link(transport_.id_, remote_).latency);
            transport_.post_parcel(remote_, last_message_due_, [&](Parcel& parcel) {
                parcel.kind = Parcel::Kind::kMessage;
                parcel.header_size = header.size();
                parcel.bytes.assign(header.begin(), header.end());
                parcel.bytes.insert(parcel.bytes.end(), payload.begin(), payload.end());
            });
        }
    }
    insert_by_due(transport_.operations_, operation);
    transport_.schedule();
}

Result<std::unique_ptr<RemoteKey>> FakeEndpoint::unpack_key(std::span<const std::byte> packed) {
    SLUICE_ASSIGN_OR_RETURN(std::span<const std::byte> content, unseal(kKeyKind, "memory key", packed));
    RegionId region = 0;
    if (!take_u64(content, region)) {
        return invalid_argument("the peer's memory key is empty");
    }
    return std::unique_ptr<RemoteKey>(std::make_unique<FakeKey>(region));
}

LinkInfo FakeEndpoint::link() const {
    const std::lock_guard<std::mutex> lock(transport_.fabric_->mutex);
    LinkInfo info;
    info.transport = "fake";
    info.link_class = transport_.fabric_->link(remote_, transport_.id_).link_class;
    info.probed = transport_.fabric_->probed;
    return info;
}

void FakeEndpoint::close(bool force, Completion& completion) {
    assert(transport_.loop_.on_loop_thread());
    closing_ = true;
    closers_.push_back(&completion);
    if (force) {
        transport_.fail_operations(*this, {StatusCode::kAborted, "the endpoint was closed", peer_});
    }
    transport_.schedule();
}

}  // namespace

void FakeFabric::Impl::Pump::run() {
    posted.store(false);
    if (transport != nullptr) {
        transport->pump();
    }
}

FakeFabric::FakeFabric() : impl_(std::make_shared<Impl>()) {}
FakeFabric::~FakeFabric() = default;

FakeFabric::Opened FakeFabric::open(EventLoop& loop) {
    auto transport = std::make_unique<FakeTransport>(impl_, loop);
    const FakeId id = transport->id();
    return {id, std::move(transport)};
}

void FakeFabric::set_default_link(const FakeLink& link) {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->default_link = link;
}

void FakeFabric::allow_device_memory(MemoryKind probed) {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->device_memory = true;
    impl_->probed = probed;
}

void FakeFabric::set_link(FakeId owner, FakeId reader, const FakeLink& link) {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->links[{owner, reader}] = link;
}

void FakeFabric::fail_get(FakeId reader, int nth) {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->gets_until_failure[reader] = nth;
}

void FakeFabric::drop_messages(FakeId from, FakeId to, int count) {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->drops[{from, to}] += count;
}

void FakeFabric::kill(FakeId id) {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->dead.insert(id);
    for (const auto& [other, transport] : impl_->transports) {
        transport->schedule();
    }
}

void FakeFabric::freeze(FakeId id, bool frozen) {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    if (frozen) {
        impl_->frozen.insert(id);
    } else {
        impl_->frozen.erase(id);
    }
    const auto found = impl_->transports.find(id);
    if (found != impl_->transports.end()) {
        found->second->schedule();
    }
}

std::uint64_t FakeFabric::gets_done() const { return impl_->done.load(std::memory_order_relaxed); }

}  // namespace sluice::transport

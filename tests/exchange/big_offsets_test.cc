// C11: a tensor larger than 4 GiB, sparse on both sides; slices across the 2 and 4 GiB borders.
#include "runtime/exchange/bootstrap_in_process.h"
#include "runtime/exchange/session.h"
#include "tests/exchange/sync_bed.h"
#include "trainer/resident_source.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <thread>

namespace sluice::test {
namespace {

constexpr std::int64_t kBytes = (std::int64_t{1} << 32) + 4096;
constexpr std::int64_t kReach = 96 << 10;

// Address space that takes memory only where it is written.
class SparseMemory {
public:
    SparseMemory() {
        void* at = ::mmap(nullptr, static_cast<std::size_t>(kBytes), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            throw std::runtime_error("mmap of 4 GiB of address space failed");
        }
        data_ = static_cast<std::byte*>(at);
    }
    ~SparseMemory() { ::munmap(data_, static_cast<std::size_t>(kBytes)); }
    SparseMemory(const SparseMemory&) = delete;
    SparseMemory& operator=(const SparseMemory&) = delete;
    [[nodiscard]] std::byte* data() const { return data_; }

private:
    std::byte* data_ = nullptr;
};

struct Range {
    std::int64_t begin;
    std::int64_t end;
};
constexpr Range kRanges[] = {{0, kReach},
                             {(std::int64_t{1} << 31) - kReach, (std::int64_t{1} << 31) + kReach},
                             {(std::int64_t{1} << 32) - kReach, kBytes}};

class BigOffsetsTest : public testing::TestWithParam<RouteOptions::PathChoice> {};

TEST_P(BigOffsetsTest, BytesAroundTheBordersAreExact) {
    const Catalogue catalogue = Catalogue::create({{"model.layers.0.big", DType::kU8, Dims{kBytes}, 0, ""}}, 1).value();
    const SparseMemory source;
    const SparseMemory target;
    Ownership owned;
    owned.regions.push_back({0, Dims{0}, Dims{kBytes}, 0, 0, Dims{1}});
    owned.segment_bytes = {kBytes};
    Demand demand;
    demand.parameters.push_back({"big", DType::kU8, Dims{kBytes}});
    for (const Range& range : kRanges) {
        CopyRecord record;
        record.source_dtype = record.parameter_dtype = DType::kU8;
        record.copy.src_offset = record.copy.dst_offset = range.begin;
        record.copy.sizes = Dims{range.end - range.begin};
        record.copy.src_strides = record.copy.dst_strides = Dims{1};
        demand.records.push_back(record);
        for (std::int64_t i = range.begin; i < range.end; ++i) {
            source.data()[i] = pattern(9, static_cast<std::size_t>(i));
        }
    }
    const RouteOptions route{.chunk_bytes = 64 << 10, .path = GetParam()};
    const auto bootstraps = in_process_bootstraps(2);
    std::thread trainer_thread([&] {
        auto session = Session::open(bed_settings(), ucx_factory(Network::kUcxCma));
        ASSERT_TRUE(session.ok()) << session.status().message();
        ResidentSource weights({{source.data(), kBytes, MemoryKind::kHost}});
        Trainer::Options options;
        options.route = route;
        auto trainer = Trainer::create(**session, *bootstraps[0], catalogue, 0, ok_status(), owned, &weights, options);
        ASSERT_TRUE(trainer.ok()) << trainer.status().message();
        EXPECT_TRUE((*trainer)->sync(1).ok());
        (*trainer)->close();
    });
    std::thread worker_thread([&] {
        auto session = Session::open(bed_settings(), ucx_factory(Network::kUcxCma));
        ASSERT_TRUE(session.ok()) << session.status().message();
        const ParameterStore store{{{target.data(), kBytes, MemoryKind::kHost}}, {{0, 0}}};
        Worker::Options options;
        options.partial = true;
        options.route = route;
        auto worker =
            Worker::create(**session, *bootstraps[1], catalogue, 0, 0, ok_status(), demand, store, {}, options);
        ASSERT_TRUE(worker.ok()) << worker.status().message();
        const Status status = (*worker)->sync(1);
        EXPECT_TRUE(status.ok()) << status.message();
        (*worker)->close();
    });
    trainer_thread.join();
    worker_thread.join();
    for (const Range& range : kRanges) {
        EXPECT_EQ(std::memcmp(source.data() + range.begin, target.data() + range.begin,
                              static_cast<std::size_t>(range.end - range.begin)),
                  0)
            << "from " << range.begin;
    }
    // What nobody asked for was not touched.
    EXPECT_EQ(target.data()[kReach], std::byte{0});
    EXPECT_EQ(target.data()[(std::int64_t{1} << 31) + kReach], std::byte{0});
    EXPECT_EQ(target.data()[(std::int64_t{1} << 32) - kReach - 1], std::byte{0});
}

INSTANTIATE_TEST_SUITE_P(Paths, BigOffsetsTest,
                         testing::Values(RouteOptions::PathChoice::kDirect, RouteOptions::PathChoice::kPacked),
                         [](const auto& instance) {
                             return instance.param == RouteOptions::PathChoice::kDirect ? "direct" : "packed";
                         });

}  // namespace
}  // namespace sluice::test

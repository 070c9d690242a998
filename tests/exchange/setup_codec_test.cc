#include "runtime/exchange/setup_codec.h"

#include "planner/plan_codec.h"
#include "tests/exchange/setup_inputs.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice::test {
namespace {

using Bytes = std::vector<std::byte>;

RemoteRegion region(std::uint64_t seed) { return {seed << 40, seed * 1000, Bytes(seed, static_cast<std::byte>(seed))}; }

void expect_equal(const RemoteRegion& a, const RemoteRegion& b) {
    EXPECT_EQ(a.address, b.address);
    EXPECT_EQ(a.bytes, b.bytes);
    EXPECT_EQ(a.key, b.key);
}

MemoryCard some_card() {
    MemoryCard card;
    card.flows[0].segments = {region(1), region(2)};
    card.flows[0].gather_buffers = {region(3), region(4), region(5)};
    card.flows[0].slots = region(6);
    card.flows[0].slot_bytes = 4096;
    card.flows[1].segments = {region(7)};
    card.device_uuid = std::string("\0\xFFgpu", 5);
    return card;
}

TEST(SetupCodecTest, CardsComeBack) {
    const Bytes address(321, std::byte{0x5A});
    const MemoryCard card = some_card();
    const auto decoded = decode_card(encode_card(address, card));
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded->address, address);
    EXPECT_EQ(decoded->memory.device_uuid, card.device_uuid);
    for (std::size_t flow = 0; flow < card.flows.size(); ++flow) {
        const RemoteMemory& want = card.flows[flow];
        const RemoteMemory& got = decoded->memory.flows[flow];
        ASSERT_EQ(got.segments.size(), want.segments.size());
        for (std::size_t i = 0; i < want.segments.size(); ++i) {
            expect_equal(got.segments[i], want.segments[i]);
        }
        ASSERT_EQ(got.gather_buffers.size(), want.gather_buffers.size());
        for (std::size_t i = 0; i < want.gather_buffers.size(); ++i) {
            expect_equal(got.gather_buffers[i], want.gather_buffers[i]);
        }
        expect_equal(got.slots, want.slots);
        EXPECT_EQ(got.slot_bytes, want.slot_bytes);
    }
}

TEST(SetupCodecTest, ACardCanBeAnError) {
    const auto decoded = decode_card(encode_card({}, Status(StatusCode::kResourceExhausted, "ulimit -l is too low")));
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(decoded.status().message(), "ulimit -l is too low");
}

TEST(SetupCodecTest, StatusesComeBack) {
    EXPECT_TRUE(decode_status(encode_status(ok_status())).ok());
    for (int code = 1; code <= static_cast<int>(StatusCode::kInternal); ++code) {
        const Status decoded = decode_status(encode_status(Status(static_cast<StatusCode>(code), "why")));
        EXPECT_EQ(static_cast<int>(decoded.code()), code);
        EXPECT_EQ(decoded.message(), "why");
    }
}

TEST(SetupCodecTest, InputsOfBothSidesComeBack) {
    const SetupInputs inputs;
    const std::uint64_t digest = inputs.catalogue.digest();
    const RankInput trainer = inputs.trainer_input(1);
    const auto decoded_trainer = decode_input(encode_input(trainer, digest, 4096), inputs.catalogue);
    ASSERT_TRUE(decoded_trainer.ok()) << decoded_trainer.status().message();
    EXPECT_EQ(decoded_trainer->catalogue_digest, digest);
    EXPECT_EQ(decoded_trainer->chunk_bytes, 4096);
    EXPECT_TRUE(decoded_trainer->input.trainer);
    EXPECT_EQ(decoded_trainer->input.own_rank, 1);
    EXPECT_EQ(encode_ownership(decoded_trainer->input.ownership), encode_ownership(trainer.ownership));
    ASSERT_TRUE(decoded_trainer->input.gather);
    EXPECT_EQ(encode_ownership(decoded_trainer->input.gather->shards), encode_ownership(trainer.gather->shards));
    EXPECT_EQ(encode_demand(decoded_trainer->input.gather->demand.dense), encode_demand(trainer.gather->demand.dense));
    EXPECT_EQ(encode_demand(decoded_trainer->input.gather->demand.experts),
              encode_demand(trainer.gather->demand.experts));
    EXPECT_EQ(decoded_trainer->input.gather->demand.dense_owners, trainer.gather->demand.dense_owners);
    EXPECT_EQ(decoded_trainer->input.gather->demand.expert_owners, trainer.gather->demand.expert_owners);
    EXPECT_EQ(decoded_trainer->input.gather->demand.groups, trainer.gather->demand.groups);

    const RankInput worker = inputs.worker_input(3);
    const auto decoded_worker = decode_input(encode_input(worker, digest, 4096), inputs.catalogue);
    ASSERT_TRUE(decoded_worker.ok()) << decoded_worker.status().message();
    EXPECT_FALSE(decoded_worker->input.trainer);
    EXPECT_EQ(decoded_worker->input.own_rank, 3);
    EXPECT_EQ(decoded_worker->input.demand_key, 1);
    ASSERT_TRUE(decoded_worker->input.demand);
    EXPECT_EQ(encode_demand(*decoded_worker->input.demand), encode_demand(*worker.demand));
}

TEST(SetupCodecTest, OfAnotherCatalogueOnlyTheDigestIsRead) {
    const SetupInputs inputs;
    const auto decoded = decode_input(encode_input(inputs.worker_input(0), 5, 4096), inputs.catalogue);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(decoded->catalogue_digest, 5u);
    EXPECT_FALSE(decoded->input.demand);
}

RankPlan worker_plan(const SetupInputs& inputs, const RankInput& worker) {
    std::vector<Ownership> owners = {inputs.trainer_input(0).ownership, inputs.trainer_input(1).ownership};
    const DemandRequest request{&*worker.demand, {0, 2}, {}};
    Plan plan = route(inputs.catalogue, owners, std::span(&request, 1), inputs.route).value();
    RankPlan out;
    out.session = 0xABCD'0000'0000'0001;
    out.fingerprint = plan.fingerprint;
    out.trainers = {0, 1};
    out.workers = {2, 3, 4, 5};
    out.route = std::move(plan.routes[0]);
    return out;
}

TEST(SetupCodecTest, PlansComeBack) {
    const SetupInputs inputs;
    const RankInput worker = inputs.worker_input(0);
    const RankPlan plan = worker_plan(inputs, worker);
    const auto decoded = decode_rank_plan(encode_rank_plan(plan), worker, inputs.catalogue, inputs.route.chunk_bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded->session, plan.session);
    EXPECT_EQ(decoded->fingerprint, plan.fingerprint);
    EXPECT_EQ(decoded->trainers, plan.trainers);
    EXPECT_EQ(decoded->workers, plan.workers);
    EXPECT_EQ(encode_route(decoded->route), encode_route(plan.route));
    const auto refused =
        decode_rank_plan(encode_rank_plan(plan_refused("a hole")), worker, inputs.catalogue, inputs.route.chunk_bytes);
    EXPECT_EQ(refused.status().message(), "a hole");
}

TEST(SetupCodecTest, APlanThatDoesNotFitTheRankIsRefused) {
    const SetupInputs inputs;
    const RankInput worker = inputs.worker_input(0);
    const RankPlan plan = worker_plan(inputs, worker);
    RankInput smaller = worker;
    smaller.demand->parameters.pop_back();
    EXPECT_FALSE(decode_rank_plan(encode_rank_plan(plan), smaller, inputs.catalogue, inputs.route.chunk_bytes).ok());
    EXPECT_FALSE(decode_rank_plan(encode_rank_plan(plan), worker, inputs.catalogue, 256).ok())
        << "chunks are larger than agreed";
    RankPlan fewer = plan;
    fewer.trainers = {0};
    EXPECT_FALSE(decode_rank_plan(encode_rank_plan(fewer), worker, inputs.catalogue, inputs.route.chunk_bytes).ok())
        << "a chunk of trainer 1";
    RankInput without = worker;
    without.demand.reset();
    EXPECT_FALSE(decode_rank_plan(encode_rank_plan(plan), without, inputs.catalogue, inputs.route.chunk_bytes).ok())
        << "it asked for nothing";
}

TEST(SetupCodecTest, AnOrderThatDoesNotNameEachGroupOnceIsRefused) {
    const SetupInputs inputs;
    const RankInput trainer = inputs.trainer_input(0);
    const auto decoded = [&](std::vector<GroupId> order) {
        RankPlan plan;
        plan.trainers = {0, 1};
        plan.group_order = std::move(order);
        return decode_rank_plan(encode_rank_plan(plan), trainer, inputs.catalogue, inputs.route.chunk_bytes);
    };
    ASSERT_EQ(inputs.catalogue.groups(), 4);
    EXPECT_TRUE(decoded({0, 2, 1, 3}).ok());
    EXPECT_FALSE(decoded({0, 2, 2, 3}).ok());
    EXPECT_FALSE(decoded({0, 1, 2, 4}).ok());
    EXPECT_FALSE(decoded({0, 1, 2}).ok());
}

// Whatever comes: no crash, no endless loop, and truncated messages are not taken for whole ones.
template <class Decode>
void damage(const Bytes& good, const Decode& decode, int rounds) {
    for (std::size_t size = 0; size < good.size(); size += std::max<std::size_t>(1, good.size() / 400)) {
        decode(std::span(good).first(size));
    }
    std::mt19937_64 random(17);
    for (int round = 0; round < rounds; ++round) {
        Bytes bad = round % 5 == 0 ? Bytes(random() % 300) : good;
        if (round % 5 == 0) {
            for (std::byte& b : bad) {
                b = static_cast<std::byte>(random());
            }
        } else {
            for (std::uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
                bad[random() % bad.size()] ^= static_cast<std::byte>(1 + random() % 255);
            }
        }
        decode(bad);
    }
}

TEST(SetupCodecTest, DamagedBytesAreRefusedOrDecodedWithoutHarm) {
    const SetupInputs inputs;
    const RankInput worker = inputs.worker_input(0);
    int refused = 0;
    damage(
        encode_card(Bytes(100), some_card()),
        [&](std::span<const std::byte> bytes) { refused += !decode_card(bytes).ok(); }, 5000);
    EXPECT_GT(refused, 1000);
    refused = 0;
    damage(
        encode_input(inputs.trainer_input(0), inputs.catalogue.digest(), 4096),
        [&](std::span<const std::byte> bytes) { refused += !decode_input(bytes, inputs.catalogue).ok(); }, 1000);
    EXPECT_GT(refused, 500);
    refused = 0;
    damage(
        encode_input(worker, inputs.catalogue.digest(), 4096),
        [&](std::span<const std::byte> bytes) { refused += !decode_input(bytes, inputs.catalogue).ok(); }, 1000);
    EXPECT_GT(refused, 500);
    refused = 0;
    damage(
        encode_rank_plan(worker_plan(inputs, worker)),
        [&](std::span<const std::byte> bytes) {
            refused += !decode_rank_plan(bytes, worker, inputs.catalogue, inputs.route.chunk_bytes).ok();
        },
        1000);
    EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace sluice::test

#include "planner/dry_run.h"
#include "planner/plan_codec.h"
#include "planner/plan_frame.h"
#include "planner/router.h"
#include "planner/trainer_ownership.h"
#include "tests/planner/plan_execution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace sluice {
namespace {

using test::SmallModel;
using ::testing::HasSubstr;

// A small plan with everything in it: conversions, several owners, paths and groups, alternates.
class CodecTest : public ::testing::Test {
protected:
    void SetUp() override {
        const TrainerLayout trainers = *TrainerLayout::parse("tp=2,pp=2,dp=2,ep=4");
        for (int rank = 0; rank < trainers.world_size(); ++rank) {
            owners_.push_back(
                *trainer_ownership(model_.catalogue, model_.config, trainers, rank, SourceKind::kGathered));
        }
        const WorkerLayout workers = *WorkerLayout::parse("tp=4,ep=on,replicas=2");
        for (int rank = 0; rank < workers.pool_size(); ++rank) {
            demands_.push_back(*dry_run(model_.catalogue, model_.config, workers, rank));
        }
        std::vector<DemandRequest> requests;
        for (int rank = 0; rank < workers.pool_size(); ++rank) {
            requests.push_back({&demands_[static_cast<std::size_t>(rank)], {rank, rank + 4}, {}, -1});
        }
        auto plan = route(model_.catalogue, owners_, requests, {kChunkBytes});
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        plan_ = std::move(*plan);
        limits_ = {8, 8, model_.catalogue.groups(), kChunkBytes};
    }

    static constexpr std::int64_t kChunkBytes = 8192;
    SmallModel model_ = test::small_model("Qwen3-30B-A3B");
    std::vector<Ownership> owners_;
    std::vector<Demand> demands_;
    Plan plan_;
    PlanLimits limits_;
};

void expect_equal(const Piece& a, const Piece& b) {
    EXPECT_EQ(std::tie(a.parameter, a.segment, a.source_dtype, a.parameter_dtype, a.copy),
              std::tie(b.parameter, b.segment, b.source_dtype, b.parameter_dtype, b.copy));
}

void expect_equal(const Route& a, const Route& b) {
    EXPECT_EQ(a.workers, b.workers);
    ASSERT_EQ(a.chunks.size(), b.chunks.size());
    for (std::size_t c = 0; c < a.chunks.size(); ++c) {
        const Chunk& x = a.chunks[c];
        const Chunk& y = b.chunks[c];
        EXPECT_EQ(std::tie(x.group, x.owner, x.path, x.wire_bytes, x.alternates, x.mirrors),
                  std::tie(y.group, y.owner, y.path, y.wire_bytes, y.alternates, y.mirrors));
        ASSERT_EQ(x.pieces.size(), y.pieces.size());
        for (std::size_t p = 0; p < x.pieces.size(); ++p) {
            expect_equal(x.pieces[p], y.pieces[p]);
        }
    }
}

void expect_equal(const Demand& a, const Demand& b) {
    ASSERT_EQ(a.parameters.size(), b.parameters.size());
    for (std::size_t p = 0; p < a.parameters.size(); ++p) {
        EXPECT_EQ(std::tie(a.parameters[p].name, a.parameters[p].dtype, a.parameters[p].shape),
                  std::tie(b.parameters[p].name, b.parameters[p].dtype, b.parameters[p].shape));
    }
    ASSERT_EQ(a.records.size(), b.records.size());
    for (std::size_t r = 0; r < a.records.size(); ++r) {
        const CopyRecord& x = a.records[r];
        const CopyRecord& y = b.records[r];
        EXPECT_EQ(std::tie(x.tensor, x.parameter, x.source_dtype, x.parameter_dtype, x.copy),
                  std::tie(y.tensor, y.parameter, y.source_dtype, y.parameter_dtype, y.copy));
    }
    ASSERT_EQ(a.fills.size(), b.fills.size());
    for (std::size_t f = 0; f < a.fills.size(); ++f) {
        EXPECT_EQ(a.fills[f].parameter, b.fills[f].parameter);
        EXPECT_EQ(a.fills[f].box, b.fills[f].box);
    }
    EXPECT_EQ(a.not_from_trainer, b.not_from_trainer);
}

TEST_F(CodecTest, DemandsComeBackAsTheyWere) {
    Demand demand = demands_[3];
    demand.not_from_trainer = {1, 0};
    demand.fills.push_back({2, {0, 0, 2, {1}, {2}, {2}}});
    const std::string bytes = encode_demand(demand);
    const auto back = decode_demand(bytes, model_.catalogue);
    ASSERT_TRUE(back.ok()) << back.status().message();
    expect_equal(demand, *back);
    EXPECT_EQ(encode_demand(*back), bytes);
}

TEST_F(CodecTest, OwnershipsComeBackAsTheyWere) {
    for (const Ownership& owner : owners_) {
        const std::string bytes = encode_ownership(owner);
        const auto back = decode_ownership(bytes, model_.catalogue);
        ASSERT_TRUE(back.ok()) << back.status().message();
        EXPECT_EQ(back->stage, owner.stage);
        EXPECT_EQ(back->segment_bytes, owner.segment_bytes);
        EXPECT_EQ(back->gathered_bytes, owner.gathered_bytes);
        ASSERT_EQ(back->regions.size(), owner.regions.size());
        for (std::size_t i = 0; i < owner.regions.size(); ++i) {
            const OwnedRegion& a = owner.regions[i];
            const OwnedRegion& b = back->regions[i];
            EXPECT_EQ(std::tie(a.tensor, a.begin, a.end, a.segment, a.offset, a.strides, a.fold),
                      std::tie(b.tensor, b.begin, b.end, b.segment, b.offset, b.strides, b.fold));
        }
        EXPECT_EQ(encode_ownership(*back), bytes);
    }
}

TEST_F(CodecTest, FoldedRegionsComeBackAndImpossibleFoldsAreRefused) {
    const SmallModel model = test::small_model("gpt-oss-20b");
    Ownership owner = *trainer_ownership(model.catalogue, model.config, *TrainerLayout::parse("format=megatron"), 0,
                                         SourceKind::kResident);
    const auto back = decode_ownership(encode_ownership(owner), model.catalogue);
    ASSERT_TRUE(back.ok()) << back.status().message();
    int folded = 0;
    for (std::size_t i = 0; i < owner.regions.size(); ++i) {
        EXPECT_EQ(back->regions[i].fold, owner.regions[i].fold);
        folded += owner.regions[i].fold.axis >= 0 ? 1 : 0;
    }
    EXPECT_EQ(folded, 4) << "weight and bias of two layers";
    const auto region =
        std::find_if(owner.regions.begin(), owner.regions.end(), [](const OwnedRegion& r) { return r.fold.axis >= 0; });
    const AxisFold good = region->fold;
    for (const AxisFold& bad :
         {AxisFold{good.axis, 3, good.stride}, AxisFold{good.axis, 1, good.stride}, AxisFold{9, 2, good.stride},
          AxisFold{good.axis, 2, std::int64_t{1} << 40}, AxisFold{good.axis, 2, -2}}) {
        region->fold = bad;
        EXPECT_EQ(decode_ownership(encode_ownership(owner), model.catalogue).status().code(),
                  StatusCode::kInvalidArgument)
            << bad.axis << " " << bad.period << " " << bad.stride;
    }
}

TEST_F(CodecTest, RoutesComeBackAsTheyWere) {
    for (std::size_t d = 0; d < demands_.size(); ++d) {
        const std::string bytes = encode_route(plan_.routes[d]);
        const auto back = decode_route(bytes, limits_, demands_[d].parameters, owners_);
        ASSERT_TRUE(back.ok()) << back.status().message();
        expect_equal(plan_.routes[d], *back);
        EXPECT_EQ(encode_route(*back), bytes);
        EXPECT_TRUE(decode_route(bytes, limits_, demands_[d].parameters).ok()) << "without the owners' sizes";
    }
}

TEST_F(CodecTest, OwnerRoutesReadTheSameBytesInTheSameOrder) {
    const std::vector<OwnerRoute> all = owner_routes(plan_, 8);
    for (int owner = 0; owner < 8; ++owner) {
        const OwnerRoute route = owner_route(plan_, owner);
        const std::string bytes = encode_owner_route(route);
        EXPECT_EQ(encode_owner_route(all[static_cast<std::size_t>(owner)]), bytes);
        const auto back = decode_owner_route(bytes, limits_, owners_[static_cast<std::size_t>(owner)]);
        ASSERT_TRUE(back.ok()) << back.status().message();
        EXPECT_EQ(encode_owner_route(*back), bytes);
        EXPECT_EQ(back->group_order, route.group_order);
        ASSERT_EQ(back->demands.size(), route.demands.size());
        for (std::size_t d = 0; d < route.demands.size(); ++d) {
            EXPECT_EQ(back->demands[d].demand, route.demands[d].demand);
            EXPECT_EQ(back->demands[d].workers, route.demands[d].workers);
            ASSERT_EQ(back->demands[d].chunks.size(), route.demands[d].chunks.size());
            for (std::size_t c = 0; c < route.demands[d].chunks.size(); ++c) {
                const ServedChunk& a = route.demands[d].chunks[c];
                const ServedChunk& b = back->demands[d].chunks[c];
                EXPECT_EQ(std::tie(a.id, a.group, a.path, a.wire_bytes), std::tie(b.id, b.group, b.path, b.wire_bytes));
                ASSERT_EQ(a.pieces.size(), b.pieces.size());
                for (std::size_t p = 0; p < a.pieces.size(); ++p) {
                    std::vector<std::int64_t> want;
                    std::vector<std::int64_t> got;
                    for_each_item(a.pieces[p].copy, [&](std::int64_t src, std::int64_t) {
                        for (std::int64_t i = 0; i < a.pieces[p].copy.item; ++i) {
                            want.push_back(src + i);
                        }
                    });
                    for_each_item(b.pieces[p].copy, [&](std::int64_t src, std::int64_t) {
                        for (std::int64_t i = 0; i < b.pieces[p].copy.item; ++i) {
                            got.push_back(src + i);
                        }
                    });
                    EXPECT_EQ(got, want);
                    EXPECT_EQ(a.pieces[p].segment, b.pieces[p].segment);
                    EXPECT_EQ(a.pieces[p].wire_bytes(), b.pieces[p].wire_bytes());
                }
            }
        }
    }
}

TEST_F(CodecTest, PlanFilesComeBackAsTheyWere) {
    const PlanFile file{"small", "tp=2", {"tp=4", "tp=1"}, model_.catalogue.digest(), limits_, demands_, plan_};
    const std::string bytes = encode_plan_file(file);
    const auto back = decode_plan_file(bytes, model_.catalogue);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->model, "small");
    EXPECT_EQ(back->worker_layouts, file.worker_layouts);
    EXPECT_EQ(back->plan.group_order, plan_.group_order);
    EXPECT_EQ(back->plan.fingerprint, plan_.fingerprint);
    for (std::size_t d = 0; d < demands_.size(); ++d) {
        expect_equal(demands_[d], back->demands[d]);
        expect_equal(plan_.routes[d], back->plan.routes[d]);
    }
    EXPECT_EQ(encode_plan_file(*back), bytes);
    EXPECT_FALSE(decode_plan_file(bytes).ok()) << "it holds no catalogue";
    PlanFile whole = file;
    whole.catalogue = model_.catalogue;
    const std::string whole_bytes = encode_plan_file(whole);
    const auto alone = decode_plan_file(whole_bytes);
    ASSERT_TRUE(alone.ok()) << alone.status().message();
    EXPECT_EQ(alone->catalogue.digest(), model_.catalogue.digest());
    EXPECT_EQ(alone->catalogue.groups(), model_.catalogue.groups());
    EXPECT_EQ(encode_plan_file(*alone), whole_bytes);
    whole.catalogue_digest ^= 1;
    EXPECT_FALSE(decode_plan_file(encode_plan_file(whole)).ok()) << "another catalogue than it names";
    const auto other = decode_plan_file(bytes, test::small_model("Qwen3-0.6B").catalogue);
    EXPECT_THAT(other.status().message(), HasSubstr("plan again"));
}

TEST_F(CodecTest, FramesAreTheSameOnEveryMachine) {
    const std::string frame = seal_plan_message(PlanMessage::kRoute, "body");
    EXPECT_EQ(frame.substr(0, 12), std::string("SLPN\x01\x00\x03\x00"
                                               "body",
                                               12));
    EXPECT_EQ(frame.size(), 4 + kPlanFrameBytes);
    EXPECT_EQ(*open_plan_message(PlanMessage::kRoute, frame), "body");
}

TEST_F(CodecTest, RefusesWrongFramesInOneLine) {
    const std::string good = encode_route(plan_.routes[0]);
    const auto refusal = [&](const std::string& bytes) {
        const auto route = decode_route(bytes, limits_, demands_[0].parameters, owners_);
        EXPECT_FALSE(route.ok());
        EXPECT_EQ(route.status().code(), StatusCode::kInvalidArgument);
        EXPECT_EQ(route.status().message().find('\n'), std::string::npos);
        return route.status().message();
    };
    EXPECT_THAT(refusal(""), HasSubstr("truncated"));
    EXPECT_THAT(refusal(std::string(100, 'x')), HasSubstr("no plan message"));
    std::string version = good;
    version[4] = 9;
    EXPECT_THAT(refusal(version), HasSubstr("format version 9"));
    EXPECT_THAT(refusal(encode_demand(demands_[0])), HasSubstr("kind 1"));
    std::string flipped = good;
    flipped[good.size() / 2] ^= 1;
    EXPECT_THAT(refusal(flipped), HasSubstr("checksum"));
    EXPECT_THAT(refusal(good + "x"), HasSubstr("checksum"));
}

TEST_F(CodecTest, RefusesTruncationAtEveryByte) {
    // Long messages are cut at every byte of both ends and at steps between; the checksum sees all of them alike.
    const auto cuts = [](std::size_t size) {
        std::vector<std::size_t> out;
        for (std::size_t n = 0; n < size; n += n < 400 || size - n < 400 ? 1 : 37) {
            out.push_back(n);
        }
        return out;
    };
    const std::string demand = encode_demand(demands_[0]);
    const std::string owner = encode_ownership(owners_[0]);
    const std::string route = encode_route(plan_.routes[0]);
    const std::string served = encode_owner_route(owner_route(plan_, 0));
    for (const std::size_t n : cuts(demand.size())) {
        EXPECT_FALSE(decode_demand(demand.substr(0, n), model_.catalogue).ok());
    }
    for (const std::size_t n : cuts(owner.size())) {
        EXPECT_FALSE(decode_ownership(owner.substr(0, n), model_.catalogue).ok());
    }
    for (const std::size_t n : cuts(route.size())) {
        EXPECT_FALSE(decode_route(route.substr(0, n), limits_, demands_[0].parameters).ok());
    }
    for (const std::size_t n : cuts(served.size())) {
        EXPECT_FALSE(decode_owner_route(served.substr(0, n), limits_, owners_[0]).ok());
    }
}

// Bodies that are altered and sealed again, as a hostile peer would: whatever decodes must be within every limit.
TEST_F(CodecTest, AlteredBodiesAreRefusedOrStayWithinTheirLimits) {
    std::mt19937 random(3);
    const auto alter = [&](std::string body) {
        for (int n = 1 + static_cast<int>(random() % 4); n > 0 && !body.empty(); --n) {
            const std::size_t at = random() % body.size();
            switch (random() % 4) {
                case 0:
                    body[at] = static_cast<char>(random());
                    break;
                case 1:
                    body[at] = static_cast<char>(body[at] ^ (1 << (random() % 8)));
                    break;
                case 2:
                    body.erase(at, 1 + random() % 8);
                    break;
                default:
                    body.insert(at, 1 + random() % 8, static_cast<char>(random()));
            }
        }
        return body;
    };
    const auto body_of = [](PlanMessage kind, const std::string& bytes) {
        return std::string(*open_plan_message(kind, bytes));
    };
    const auto inside = [](const Dims& sizes, const Dims& strides, std::int64_t offset, std::int64_t item,
                           std::int64_t bytes) {
        std::int64_t end = offset;
        for (std::size_t d = 0; d < sizes.size(); ++d) {
            if (sizes[d] == 0) {
                return true;
            }
            end += (sizes[d] - 1) * strides[d];
        }
        return offset >= 0 && end + item <= bytes;
    };

    const std::string route_body = body_of(PlanMessage::kRoute, encode_route(plan_.routes[0]));
    const std::string demand_body = body_of(PlanMessage::kDemand, encode_demand(demands_[0]));
    const std::string owner_body = body_of(PlanMessage::kOwnership, encode_ownership(owners_[0]));
    const std::string served_body = body_of(PlanMessage::kOwnerRoute, encode_owner_route(owner_route(plan_, 0)));
    int accepted = 0;
    for (int i = 0; i < 3000; ++i) {
        const auto r = decode_route(seal_plan_message(PlanMessage::kRoute, alter(route_body)), limits_,
                                    demands_[0].parameters, owners_);
        for (std::size_t c = 0; r.ok() && c < r->chunks.size(); ++c) {
            const Chunk& chunk = r->chunks[c];
            ASSERT_TRUE(chunk.owner >= 0 && chunk.owner < limits_.trainers && chunk.group >= 0 &&
                        chunk.group < limits_.groups);
            ASSERT_LE(chunk.wire_bytes, kChunkBytes);
            for (const Piece& piece : chunk.pieces) {
                const Ownership& owner = owners_[static_cast<std::size_t>(chunk.owner)];
                const std::int64_t memory = piece.segment == kGatheredSegment
                                                ? owner.gathered_bytes.at(static_cast<std::size_t>(chunk.group))
                                                : owner.segment_bytes.at(static_cast<std::size_t>(piece.segment));
                ASSERT_TRUE(
                    inside(piece.copy.sizes, piece.copy.src_strides, piece.copy.src_offset, piece.copy.item, memory));
                ASSERT_TRUE(inside(piece.copy.sizes, piece.copy.dst_strides, piece.copy.dst_offset,
                                   piece.converts() ? size_of(piece.parameter_dtype) : piece.copy.item,
                                   demands_[0].parameters.at(static_cast<std::size_t>(piece.parameter)).bytes()));
            }
        }
        accepted += r.ok() ? 1 : 0;
        const auto d = decode_demand(seal_plan_message(PlanMessage::kDemand, alter(demand_body)), model_.catalogue);
        for (std::size_t n = 0; d.ok() && n < d->records.size(); ++n) {
            const CopyRecord& record = d->records[n];
            ASSERT_TRUE(inside(record.copy.sizes, record.copy.src_strides, record.copy.src_offset, record.copy.item,
                               model_.catalogue[record.tensor].bytes()));
        }
        accepted += d.ok() ? 1 : 0;
        const auto o =
            decode_ownership(seal_plan_message(PlanMessage::kOwnership, alter(owner_body)), model_.catalogue);
        for (std::size_t n = 0; o.ok() && n < o->regions.size(); ++n) {
            ASSERT_LT(static_cast<std::size_t>(o->regions[n].tensor), model_.catalogue.size());
        }
        accepted += o.ok() ? 1 : 0;
        const auto s =
            decode_owner_route(seal_plan_message(PlanMessage::kOwnerRoute, alter(served_body)), limits_, owners_[0]);
        for (std::size_t n = 0; s.ok() && n < s->demands.size(); ++n) {
            for (const ServedChunk& chunk : s->demands[n].chunks) {
                ASSERT_LE(chunk.wire_bytes, kChunkBytes);
                for (const Piece& piece : chunk.pieces) {
                    const std::int64_t memory =
                        piece.segment == kGatheredSegment
                            ? owners_[0].gathered_bytes.at(static_cast<std::size_t>(chunk.group))
                            : owners_[0].segment_bytes.at(static_cast<std::size_t>(piece.segment));
                    ASSERT_TRUE(inside(piece.copy.sizes, piece.copy.src_strides, piece.copy.src_offset, piece.copy.item,
                                       memory));
                }
            }
        }
        accepted += s.ok() ? 1 : 0;
    }
    EXPECT_GT(accepted, 0) << "some alterations are harmless; if none is, the bodies never reached the checks";
}

TEST_F(CodecTest, CutRunsCostFewBytesPerChunk) {
    // One run of a gibibyte in chunks of 64 KiB, from four owners in turn.
    Route route;
    route.workers = {0};
    std::int64_t offset[4] = {0, 0, 0, 0};
    for (int i = 0; i < 16384; ++i) {
        Chunk chunk;
        chunk.owner = i % 4;
        chunk.wire_bytes = 65536;
        chunk.alternates = {4, 5, 6, 7};
        Piece piece;
        piece.copy.item = 65536;
        piece.copy.src_offset = offset[i % 4];
        piece.copy.dst_offset = offset[i % 4] + (std::int64_t{i % 4} << 28);
        offset[i % 4] += 65536;
        chunk.pieces.push_back(piece);
        route.chunks.push_back(chunk);
    }
    EXPECT_LT(encode_route(route).size(), 16384U * 12);
}

}  // namespace
}  // namespace sluice

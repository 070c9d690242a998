// Public reports of wrong layouts and plans (L01 to L13), each with its right outcome.
#include "planner/loaders/load_context.h"
#include "planner/loaders/rules.h"
#include "planner/plan_summary.h"
#include "planner/trainer_ownership.h"
#include "tests/planner/hand_made_pull.h"
#include "tests/planner/loader_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace sluice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Fewer KV heads than ranks.
TEST(Cases, L01_FewerKvHeadsThanRanks) {
    const Model m = llama(512, 8, 2, 64, 64);
    std::int64_t kv = 0;
    std::vector<std::vector<std::string>> slices_of;
    for (int rank = 0; rank < 4; ++rank) {
        const Demand demand = run(m, {.tp = 4}, rank);
        EXPECT_EQ(pulled_bytes(m, demand, "k_proj.weight"), 65536);
        EXPECT_EQ(pulled_bytes(m, demand, "q_proj.weight"), 131072);
        kv += pulled_bytes(m, demand, "k_proj.weight") + pulled_bytes(m, demand, "v_proj.weight");
        const std::vector<std::string> got = slices(m, demand, "qkv_proj.weight");
        EXPECT_THAT(got[1], HasSubstr(rank < 2 ? "k_proj.weight 0-63" : "k_proj.weight 64-127"));
    }
    EXPECT_EQ(kv, 524288);
    EXPECT_EQ(
        refusal(llama(512, 12, 3, 64, 64), {.tp = 4}),
        "worker rank 0: model.layers.0.self_attn.qkv_proj: 3 key-value heads can be neither spread nor repeated evenly "
        "over tp=4");
    EXPECT_THAT(refusal(llama(512, 6, 2, 64, 64), {.tp = 4}), HasSubstr("6 query heads"));
}

// A padded vocabulary.
TEST(Cases, L03_VocabularyPadding) {
    const Model m = llama(64, 4, 4, 16, 32001);
    const Demand first = run(m, {.tp = 2}, 0);
    const Demand second = run(m, {.tp = 2}, 1);
    EXPECT_EQ(shape_of(first, "embed_tokens.weight"), Dims({16032, 64}));
    EXPECT_EQ(pulled_bytes(m, first, "embed_tokens.weight"), 2052096);
    EXPECT_EQ(pulled_bytes(m, second, "embed_tokens.weight"), 2044032);
    EXPECT_EQ(prove_coverage(second).padding_bytes, 2 * 63 * 64 * 2);  // embedding and head
    EXPECT_EQ(refusal(llama(64, 6, 6, 16, 151552), {.tp = 6}),
              "worker rank 0: parameter model.embed_tokens.weight: a vocabulary of 151552 padded to 151552 rows cannot "
              "be cut "
              "into 6 equal pieces; choose a parallel size that divides it");
}

// Five rows on four ranks lie 2, 2, 1, 0: the empty rank is legal and takes no part.
TEST(Cases, L05_UnevenFsdpWithAnEmptyShard) {
    SmallModel model = hand_made({{"w", DType::kBF16, {5, 4}, 0, {}}, {"one", DType::kBF16, {1, 17}, 0, {}}});
    model.config = ModelConfig::create({{"num_attention_heads", 1}}, "HandMade").value();
    std::vector<Ownership> owners;
    for (int rank = 0; rank < 4; ++rank) {
        owners.push_back(trainer_ownership(model.catalogue, model.config, TrainerLayout::parse("fsdp=4").value(), rank,
                                           SourceKind::kResident)
                             .value());
    }
    EXPECT_TRUE(owners[3].regions.empty());
    EXPECT_EQ(owners[3].segment_bytes, std::vector<std::int64_t>{0});
    const Demand demand = record(model.catalogue, [](Recorder& r) {
        r.add_parameter("w", DType::kBF16, {3, 4}).copy_(r.tensor("w").narrow(0, 1, 3));
    });
    const Plan plan = plan_of(model, owners, demand).value();
    EXPECT_EQ(bytes_by_owner(plan.routes[0]), (std::map<int, std::int64_t>{{0, 8}, {1, 16}}));
    EXPECT_TRUE(owner_route(plan, 3).group_order.empty()) << "nobody waits for the empty rank";
    EXPECT_EQ(pull(model, owners, demand)[0], picked(model, "w", {4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
    const Demand one = record(
        model.catalogue, [](Recorder& r) { r.add_parameter("one", DType::kBF16, {1, 17}).copy_(r.tensor("one")); });
    EXPECT_EQ(bytes_by_owner(plan_of(model, owners, one).value().routes[0]), (std::map<int, std::int64_t>{{0, 34}}));
}

// Experts that do not divide.
TEST(Cases, L07_UnevenExperts) {
    const Model m = make_model(ModelConfig::create({{"hidden_size", 64},
                                                    {"intermediate_size", 96},
                                                    {"num_hidden_layers", 1},
                                                    {"num_attention_heads", 4},
                                                    {"num_key_value_heads", 4},
                                                    {"vocab_size", 64},
                                                    {"moe_intermediate_size", 96},
                                                    {"num_experts", 10},
                                                    {"num_experts_per_tok", 2},
                                                    {"tie_word_embeddings", false}},
                                                   "Qwen3MoeForCausalLM")
                                   .value());
    const std::vector<std::int64_t> expected = {110592, 110592, 73728, 73728};
    // The trainer has experts 0-4 on one rank and 5-9 on the other.
    const std::map<int, std::int64_t> sources[] = {{{0, 110592}}, {{0, 73728}, {1, 36864}}, {{1, 73728}}, {{1, 73728}}};
    const TrainerLayout trainer = TrainerLayout::parse("dp=2,ep=2").value();
    std::vector<Ownership> owners;
    for (int rank = 0; rank < 2; ++rank) {
        owners.push_back(trainer_ownership(m.catalogue, m.config, trainer, rank, SourceKind::kResident).value());
    }
    std::int64_t total = 0;
    for (int rank = 0; rank < 4; ++rank) {
        const Demand demand = run(m, {.tp = 1, .dp = 4, .ep = true}, rank);
        const DemandRequest request{&demand, {rank}, {}, -1};
        const Plan plan = route(m.catalogue, owners, std::span(&request, 1), {}).value();
        std::map<int, std::int64_t> from;
        for (const Chunk& chunk : plan.routes[0].chunks) {
            for (const Piece& piece : chunk.pieces) {
                const std::string& name = demand.parameters[static_cast<std::size_t>(piece.parameter)].name;
                if (name.find(".experts.") != std::string::npos) {
                    from[chunk.owner] += piece.wire_bytes();
                }
            }
        }
        EXPECT_EQ(from, sources[rank]);
        std::int64_t bytes = 0;
        for (const CopyRecord& record : demand.records) {
            bytes += m.catalogue[record.tensor].name.find(".experts.") != std::string::npos ? record.copy.bytes() : 0;
        }
        EXPECT_EQ(bytes, expected[static_cast<std::size_t>(rank)]);
        total += bytes;
    }
    EXPECT_EQ(total, 368640);
    EXPECT_THAT(slices(m, run(m, {.dp = 4, .ep = true}, 1), "w2_weight").front(), HasSubstr("experts.3."));
}

// A loader that narrows every rank at 0 has the right shapes; what nobody reads shows it.
TEST(Cases, L08_RightShapeWrongShard) {
    const Model m = llama(64, 4, 4, 16, 64);
    const Loader broken = [](LoadContext& load) {
        const RecordingTensor gate = load.tensor("model.layers.0.mlp.gate_proj.weight");
        const std::int64_t count = gate.size(0) / load.tp().count;
        load.parameter("gate", {count, gate.size(1)}).copy_(gate.narrow(0, 0, count));
    };
    std::vector<Demand> demands;
    std::vector<const Demand*> all;
    for (int rank = 0; rank < 4; ++rank) {
        demands.push_back(dry_run(m.catalogue, m.config, {.tp = 4}, rank, broken).value());
        EXPECT_TRUE(prove_coverage(demands.back()).status.ok());
    }
    for (const Demand& demand : demands) {
        all.push_back(&demand);
    }
    const SourceCoverage coverage = source_coverage(m.catalogue, all);
    ASSERT_EQ(coverage.partly_read.size(), 1U);
    EXPECT_EQ(coverage.partly_read[0].id, m.catalogue.find("model.layers.0.mlp.gate_proj.weight").value());
    EXPECT_EQ(coverage.partly_read[0].elements, 96 * 64);
    EXPECT_EQ(coverage.partly_read[0].first, Dims({32, 0}));
    EXPECT_EQ(coverage.unread.size(), m.catalogue.size() - 1);
}

// A rank that offers a part of a tensor offers no more than it says.
TEST(Cases, L09_AShardIsNotTheWholeTensor) {
    const SmallModel model = hand_made({{"expert.weight", DType::kBF16, {512, 8}, 0, {}}});
    Ownership half = owner_of_whole(model.catalogue, {"expert.weight"});
    half.regions[0].end[0] = 256;
    const Demand demand = record(model.catalogue, [](Recorder& r) {
        r.add_parameter("p", DType::kBF16, {256, 8}).copy_(r.tensor("expert.weight").narrow(0, 256, 256));
    });
    const Status refused = plan_of(model, {half}, demand).status();
    EXPECT_EQ(refused.code(), StatusCode::kPlanRefused);
    for (const char* part : {"expert.weight", "[256:512, 0:8]", "[0:256, 0:8] by trainer rank 0", "worker rank 0"}) {
        EXPECT_THAT(refused.message(), HasSubstr(part));
    }
}

// Two ranks of the same tensor-parallel coordinate on two stages: both are seen, in either order.
TEST(Cases, L11_StagesOfOneTensorParallelRank) {
    const SmallModel model = hand_made({{"a", DType::kBF16, {4, 4}, 0, {}}, {"b", DType::kBF16, {4, 4}, 0, {}}});
    std::vector<Ownership> owners{owner_of_whole(model.catalogue, {"a"}), owner_of_whole(model.catalogue, {"b"})};
    owners[1].stage = 1;
    const Demand demand = record(model.catalogue, [](Recorder& r) {
        r.add_parameter("a", DType::kBF16, {4, 4}).copy_(r.tensor("a"));
        r.add_parameter("b", DType::kBF16, {4, 4}).copy_(r.tensor("b"));
    });
    const std::vector<Bytes> expected{model.tensors[0], model.tensors[1]};
    EXPECT_EQ(pull(model, owners, demand), expected);
    std::swap(owners[0], owners[1]);
    EXPECT_EQ(pull(model, owners, demand), expected);
}

// Data-parallel engine ranks want the same bytes, and only ranks that exist are named.
TEST(Cases, L12_DataParallelWorkers) {
    const SmallModel model = small_model("Qwen3-0.6B");
    const TrainerLayout trainer = TrainerLayout::parse("tp=2,dp=2").value();
    const WorkerLayout worker = WorkerLayout::parse("tp=2,dp=2").value();
    EXPECT_EQ(worker.to_string(), "tp=2,dp=2");
    std::vector<Ownership> owners;
    std::vector<OwnerMemory> memory;
    std::vector<Demand> demands;
    for (int rank = 0; rank < 4; ++rank) {
        owners.push_back(
            trainer_ownership(model.catalogue, model.config, trainer, rank, SourceKind::kResident).value());
        memory.push_back(fill_owner(model, owners.back()));
        demands.push_back(dry_run(model.catalogue, model.config, worker, rank).value());
    }
    std::vector<DemandRequest> requests;
    for (int rank = 0; rank < 4; ++rank) {
        requests.push_back({&demands[static_cast<std::size_t>(rank)], {rank}, {}, -1});
    }
    const Plan plan = route(model.catalogue, owners, requests, {}).value();
    std::vector<std::vector<Bytes>> got;
    for (std::size_t d = 0; d < 4; ++d) {
        EXPECT_THAT(plan.routes[d].workers, ElementsAre(static_cast<int>(d)));
        got.push_back(execute(plan.routes[d], demands[d], memory, 4 << 20));
    }
    EXPECT_EQ(got[0], got[2]);
    EXPECT_EQ(got[1], got[3]);
    EXPECT_NE(got[0], got[1]);
}

// A tied head is no parameter of its own. A file without it, one that lists it, and one whose head has its own values
// give the same pull; what nobody reads is listed.
TEST(Cases, L13_TiedEmbeddings) {
    const SmallModel model = small_model("Qwen3-0.6B");
    std::vector<CatalogueTensor> tensors(model.catalogue.tensors().begin(), model.catalogue.tensors().end());
    const auto head =
        std::find_if(tensors.begin(), tensors.end(), [](const auto& t) { return t.name == "lm_head.weight"; });
    ASSERT_NE(head, tensors.end());
    EXPECT_EQ(head->tied_to, "model.embed_tokens.weight");
    const auto pulled = [&](const std::vector<CatalogueTensor>& of, const std::vector<std::string>& expected_unread) {
        const Catalogue catalogue = Catalogue::create(of, 3).value();
        const Demand demand = dry_run(catalogue, model.config, {.tp = 2}, 1).value();
        const Demand other = dry_run(catalogue, model.config, {.tp = 2}, 0).value();
        const Demand* both[] = {&demand, &other};
        std::vector<std::string> unread;
        for (const TensorId id : source_coverage(catalogue, both).unread) {
            unread.push_back(catalogue[id].name);
        }
        EXPECT_EQ(unread, expected_unread);
        std::int64_t bytes = 0;
        for (const CopyRecord& record : demand.records) {
            bytes += catalogue[record.tensor].name.ends_with("embed_tokens.weight") ? record.copy.bytes() : 0;
        }
        return bytes;
    };
    const std::int64_t listed = pulled(tensors, {"lm_head.weight"});
    head->tied_to.clear();
    EXPECT_EQ(pulled(tensors, {"lm_head.weight"}), listed);
    tensors.erase(head);
    EXPECT_EQ(pulled(tensors, {}), listed);
    EXPECT_EQ(listed, (250 - 128) * 64 * 2);
}

}  // namespace
}  // namespace sluice::test

#include "tests/planner/layouts/layout_pairs.h"

#include <algorithm>
#include <cctype>
#include <ostream>

namespace sluice::test {
namespace {

using Trainers = std::vector<TrainerCase>;
using Pools = std::vector<std::vector<std::string>>;

constexpr SourceKind kGathered = SourceKind::kGathered;

const Pools kDensePools = {{"tp=1,replicas=3"},
                           {"tp=2,dp=2,replicas=2"},
                           {"tp=16"},
                           {"tp=8,replicas=2", "tp=2"},
                           {"tp=4,dp=3", "tp=1,dp=2", "tp=16,replicas=2"}};

// A fused qkv that is cut inside its groups (megatron, tp above the number of groups) is among them.
LayoutPairs dense(const std::string& model) {
    return {model,
            WeightForm::kCheckpoint,
            {{"tp=4,pp=2,dp=2"},
             {"tp=16,format=megatron"},
             {"tp=8,dp=2,pp=3,format=megatron", kGathered},
             {"fsdp=7"},
             {"tp=2,fsdp=5,dp=2"},
             {"tp=2,dp=3,pp=3,stages=*", kGathered}},
            kDensePools,
            {{"num_hidden_layers", "3"}, {"vocab_size", "4096"}}};
}

std::vector<LayoutPairs> dense_models() {
    std::vector<LayoutPairs> out{dense("Qwen3-0.6B"), dense("Qwen3-1.7B"), dense("Qwen3-8B"), dense("Llama-3.1-8B")};
    out[2].pools.push_back({"tp=32"});
    // 28 query and 4 key-value heads.
    out.push_back({"Qwen2.5-7B",
                   WeightForm::kCheckpoint,
                   {{"tp=4,pp=2,dp=2"},
                    {"tp=2,dp=2,format=megatron"},
                    {"tp=4,pp=4,format=megatron", kGathered},
                    {"fsdp=9"},
                    {"tp=4,fsdp=3,dp=2"},
                    {"tp=2,dp=3,pp=3,stages=*"}},
                   {{"tp=1,replicas=3"}, {"tp=2,dp=2"}, {"tp=4"}, {"tp=4,dp=2,replicas=2"}, {"tp=4", "tp=1,dp=2"}},
                   {{"num_hidden_layers", "4"}, {"vocab_size", "4096"}}});
    return out;
}

const Pools kMoePools = {{"tp=8,replicas=2"},
                         {"tp=4,dp=2,ep=on,redundant=16"},
                         {"tp=2,dp=4"},
                         {"dp=3,ep=on"},
                         {"tp=8,ep=on,replicas=2", "tp=4,dp=2", "tp=2,dp=2,ep=on,placement=round_robin"}};

Trainers moe_trainers() {
    return {{"tp=4,pp=2,dp=2,ep=8"},
            {"tp=2,pp=2,dp=4,ep=4,etp=2,format=megatron"},
            {"tp=8,dp=2,ep=16,format=megatron", kGathered},
            {"fsdp=12"},
            {"tp=2,fsdp=5,dp=2"},
            {"tp=2,dp=3,ep=3,pp=3,stages=*"},
            {"dp=8,ep=2,etp=4", kGathered}};
}

std::vector<LayoutPairs> moe_models() {
    std::vector<LayoutPairs> out;
    const auto add = [&](const char* model, const char* experts, const char* few) -> LayoutPairs& {
        out.push_back({model,
                       WeightForm::kCheckpoint,
                       moe_trainers(),
                       kMoePools,
                       {{"num_hidden_layers", "3"}, {"vocab_size", "4096"}, {experts, few}}});
        return out.back();
    };
    add("Qwen3-30B-A3B", "num_experts", "24").trainers.push_back({"fsdp=48"});
    add("Qwen3-235B-A22B", "num_experts", "24").pools.push_back({"dp=16,ep=on"});
    add("GLM-4.5-Air", "n_routed_experts", "24");
    add("Kimi-K2", "n_routed_experts", "24");
    add("DeepSeek-V3", "n_routed_experts", "24").shrunk[0].second = "4";
    // Eight experts: more ranks than experts are not asked for.
    LayoutPairs& mixtral = add("Mixtral-8x7B", "num_local_experts", "8");
    mixtral.trainers[2].layout = "tp=8,dp=2,ep=8,etp=2,format=megatron";
    mixtral.pools[1] = {"tp=4,dp=2,ep=on,redundant=8"};

    LayoutPairs fp8 = out[4];
    fp8.form = WeightForm::kPublished;  // twice as many tensors
    fp8.trainers.resize(5);
    fp8.pools.erase(fp8.pools.begin() + 2);
    out.push_back(fp8);
    return out;
}

// Experts in two or three tensors.
Trainers fused_trainers() {
    return {{"tp=4,pp=2,dp=2,ep=8"},         {"tp=2,pp=2,dp=4,ep=4,etp=2"},
            {"tp=8,ep=4,etp=2", kGathered},  {"fsdp=7"},
            {"tp=2,fsdp=5,dp=2", kGathered}, {"tp=2,dp=3,ep=3,pp=3,stages=*"}};
}

std::vector<LayoutPairs> fused_models() {
    std::vector<LayoutPairs> out;
    out.push_back({"Llama-4-Scout-17B-16E",
                   WeightForm::kCheckpoint,
                   fused_trainers(),
                   {{"tp=8,replicas=2"},
                    {"tp=4,dp=2,ep=on,redundant=8"},
                    {"tp=2,dp=4"},
                    {"dp=3,ep=on"},
                    {"tp=8,ep=on,replicas=2", "tp=4,dp=2", "tp=2"}},
                   {{"num_hidden_layers", "3"}, {"vocab_size", "4096"}, {"vision_config.num_hidden_layers", "1"}}});
    out.back().trainers.push_back({"tp=4,dp=2,ep=4,etp=2,format=megatron"});
    // Widths of 2880 on 8 and 16 ranks are uneven; as mxfp4 the last of 16 ranks has nothing.
    for (const char* model : {"gpt-oss-20b", "gpt-oss-120b"}) {
        for (const WeightForm form : {WeightForm::kCheckpoint, WeightForm::kPublished}) {
            out.push_back({model,
                           form,
                           fused_trainers(),
                           {{"tp=8,replicas=2"},
                            {"tp=4,dp=2"},
                            {"tp=2,dp=8"},
                            {"dp=16,ep=on"},
                            {"tp=4,ep=on,replicas=2", "tp=2,dp=2", "tp=8"}},
                           {{"num_hidden_layers", "3"}, {"vocab_size", "4096"}, {"num_local_experts", "32"}}});
            if (form == WeightForm::kCheckpoint) {
                out.back().trainers.push_back({"tp=4,dp=2,ep=8,format=megatron"});
            }
        }
    }
    return out;
}

}  // namespace

std::string LayoutPairs::name() const {
    std::string out = model + (form == WeightForm::kPublished ? "_published" : "");
    std::replace_if(out.begin(), out.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
    return out;
}

std::ostream& operator<<(std::ostream& out, const LayoutPairs& pairs) { return out << pairs.name(); }

std::vector<LayoutPairs> layout_pairs() {
    std::vector<LayoutPairs> out;
    for (auto models : {dense_models(), moe_models(), fused_models()}) {
        std::move(models.begin(), models.end(), std::back_inserter(out));
    }
    return out;
}

}  // namespace sluice::test

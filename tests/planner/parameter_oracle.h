#pragma once

#include "planner/catalogue.h"
#include "planner/model_config.h"
#include "tests/planner/naive_tensor.h"

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// Every element of every parameter of small models with the real structure, against the written rules (reference:
/// engine loaders, P1-P9), as formulas from a parameter's coordinate to a checkpoint tensor's. Nothing here uses the
/// recorder.
namespace sluice::test {

/// Tensor and coordinate that an element comes from; nothing = zero.
using Source = std::optional<std::pair<std::string, Index>>;

struct Wanted {
    Dims shape;
    DType dtype;
    std::function<Source(const Index&)> source;
};

/// What rank `rank` of a pool of t * d wants, filled rule by rule.
struct Oracle {
    std::int64_t t = 1, d = 1, rank = 0;
    bool ep = false, round_robin = false;
    std::int64_t redundant = 0;
    std::map<std::string, Wanted> parameters{};

    std::int64_t r() const { return rank % t; }

    void whole(const std::string& name, const Dims& shape, DType dtype = DType::kBF16, std::string from = "") {
        from = from.empty() ? name : from;
        parameters[name] = {shape, dtype, [from](const Index& at) { return Source({from, at}); }};
    }
    struct Part {
        std::string from;
        std::int64_t begin, count;
    };
    // Rows [begin, begin + count) of each part, one below the other.
    void rows(const std::string& name, const std::vector<Part>& parts, const Dims& tail, DType dtype = DType::kBF16) {
        Dims shape{0};
        for (const Part& part : parts) {
            shape[0] += part.count;
        }
        shape.insert(shape.end(), tail.begin(), tail.end());
        parameters[name] = {shape, dtype, [parts](Index at) -> Source {
                                for (const Part& part : parts) {
                                    if (at[0] < part.count) {
                                        at[0] += part.begin;
                                        return Source({part.from, at});
                                    }
                                    at[0] -= part.count;
                                }
                                return std::nullopt;
                            }};
    }
    void columns(const std::string& name, const std::string& from, std::int64_t height, std::int64_t width,
                 DType dtype = DType::kBF16) {
        const std::int64_t count = width / t;
        const std::int64_t begin = r() * count;
        parameters[name] = {
            {height, count}, dtype, [=](const Index& at) { return Source({from, {at[0], at[1] + begin}}); }};
    }
    void column(const std::string& name, std::int64_t out, const Dims& tail) {
        rows(name, {{name, r() * (out / t), out / t}}, tail);
    }
    void vocabulary(const std::string& name, const std::string& from, std::int64_t v, std::int64_t hidden) {
        const std::int64_t local = (v + 63) / 64 * 64 / t;
        const std::int64_t first = r() * local;
        parameters[name] = {{local, hidden}, DType::kBF16, [=](const Index& at) {
                                return first + at[0] < v ? Source({from, {first + at[0], at[1]}}) : std::nullopt;
                            }};
    }
    void ends(std::int64_t v, std::int64_t hidden, bool tied, const std::string& prefix = "") {
        vocabulary(prefix + "model.embed_tokens.weight", prefix + "model.embed_tokens.weight", v, hidden);
        whole(prefix + "model.norm.weight", {hidden});
        if (!tied) {
            vocabulary(prefix + "lm_head.weight", prefix + "lm_head.weight", v, hidden);
        }
    }
    void qkv(const std::string& target, const std::string& source, std::int64_t nq, std::int64_t nkv, std::int64_t hd,
             const std::string& suffix, const Dims& tail) {
        const std::int64_t rep = t >= nkv ? t / nkv : 1;
        const std::int64_t local_kv = std::max<std::int64_t>(1, nkv / t) * hd;
        const std::int64_t local_q = nq / t * hd;
        rows(target + "qkv_proj." + suffix,
             {{source + "q_proj." + suffix, r() * local_q, local_q},
              {source + "k_proj." + suffix, r() / rep * local_kv, local_kv},
              {source + "v_proj." + suffix, r() / rep * local_kv, local_kv}},
             tail);
    }
    void attention(const std::string& layer, std::int64_t nq, std::int64_t nkv, std::int64_t hd, std::int64_t hidden,
                   bool bias, bool norms) {
        const std::string at = layer + "self_attn.";
        qkv(at, at, nq, nkv, hd, "weight", {hidden});
        if (bias) {
            qkv(at, at, nq, nkv, hd, "bias", {});
        }
        columns(at + "o_proj.weight", at + "o_proj.weight", hidden, nq * hd);
        if (norms) {
            whole(at + "q_norm.weight", {hd});
            whole(at + "k_norm.weight", {hd});
        }
        whole(layer + "input_layernorm.weight", {hidden});
        whole(layer + "post_attention_layernorm.weight", {hidden});
    }
    void mlp(const std::string& at, std::int64_t width, std::int64_t hidden) {
        const std::int64_t count = width / t;
        rows(at + "gate_up_proj.weight",
             {{at + "gate_proj.weight", r() * count, count}, {at + "up_proj.weight", r() * count, count}}, {hidden});
        columns(at + "down_proj.weight", at + "down_proj.weight", hidden, width);
    }
    // Logical expert of each local slot.
    std::vector<std::int64_t> experts(std::int64_t count, std::int64_t groups) const {
        const std::int64_t ranks = ep ? t * d : 1;
        const std::int64_t me = ep ? rank : 0;
        std::vector<std::vector<std::int64_t>> held(static_cast<std::size_t>(ranks));
        const std::int64_t slots = count + redundant;
        const bool round = round_robin && groups > 1 && redundant == 0;
        std::int64_t slot = 0;
        for (std::int64_t q = 0; q < ranks; ++q) {
            for (std::int64_t n = slots / ranks + (q < slots % ranks ? 1 : 0); n > 0; --n, ++slot) {
                held[static_cast<std::size_t>(round ? slot % ranks : q)].push_back(slot % count);
            }
        }
        return held[static_cast<std::size_t>(me)];
    }
    std::int64_t moe_cut() const { return ep ? 1 : t * d; }
    std::int64_t moe_rank() const { return ep ? 0 : rank; }

    void routed(const std::string& at, std::int64_t count, std::int64_t width, std::int64_t hidden,
                std::int64_t groups = 1, const std::string& gate = "gate_proj", const std::string& up = "up_proj",
                const std::string& down = "down_proj") {
        const std::vector<std::int64_t> mine = experts(count, groups);
        const auto slots = static_cast<std::int64_t>(mine.size());
        const std::int64_t local = width / moe_cut();
        const std::int64_t begin = moe_rank() * local;
        const auto name = [mine, at](std::int64_t slot, const std::string& projection) {
            return at + std::to_string(mine[static_cast<std::size_t>(slot)]) + "." + projection + ".weight";
        };
        parameters[at + "w13_weight"] = {
            {slots, 2 * local, hidden}, DType::kBF16, [=](const Index& i) {
                const bool is_up = i[1] >= local;
                return Source({name(i[0], is_up ? up : gate), {begin + i[1] - (is_up ? local : 0), i[2]}});
            }};
        parameters[at + "w2_weight"] = {{slots, hidden, local}, DType::kBF16, [=](const Index& i) {
                                            return Source({name(i[0], down), {i[1], begin + i[2]}});
                                        }};
    }
};

ModelConfig make_config(const std::string& architecture, const char* json);
inline std::string layer_name(int n) { return "model.layers." + std::to_string(n) + "."; }

struct Combination {
    int tp, dp;
    bool ep = false, round_robin = false;
    int redundant = 0;
};

/// Compares every rank of the layout with the oracle that `fill` writes: the demand of the dry run element by element, and
/// the bytes that plans from trainers of three other layouts bring. `unread`: tensors that nobody reads.
void compare(const ModelConfig& config, const Catalogue& catalogue, const Combination& c,
             const std::function<void(Oracle&)>& fill, const std::set<std::string>& unread = {});
/// The same for the catalogue of the config.
void compare(const ModelConfig& config, const Combination& c, const std::function<void(Oracle&)>& fill,
             const std::set<std::string>& unread = {});

}  // namespace sluice::test

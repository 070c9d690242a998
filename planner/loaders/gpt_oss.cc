#include "planner/loaders/architectures.h"
#include "planner/loaders/experts.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::loaders {
namespace {

constexpr std::int64_t kMxBlock = 32;  // values of an mxfp4 block

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The rank's part [begin, begin + count) of the experts' width. All ranks' parameters are `local` wide; the last ranks'
// may be short or empty, and their tail is zero.
struct WidthPart {
    std::int64_t begin;
    std::int64_t count;
    std::int64_t local;
};

WidthPart width_part(const Split& split, std::int64_t width, std::int64_t unit) {
    const std::int64_t local = unit * ceil_div(ceil_div(width, unit), split.count);
    const std::int64_t begin = std::min(split.rank * local, width);
    return {begin, std::min(begin + local, width) - begin, local};
}

// Fills `parameter` with `source` along `dim` and with zeros behind it.
void fill_leading(const RecordingParameter& parameter, std::int64_t dim, const RecordingTensor& source) {
    const std::int64_t count = source.size(dim);
    rules::copy(parameter.narrow(dim, 0, count), source);
    parameter.narrow(dim, count, parameter.size(dim) - count).zero_();
}

class Experts {
public:
    Experts(LoadContext& load, std::string path)
        : load_(load),
          path_(std::move(path)),
          count_(load.integer("num_local_experts")),
          width_(load.integer("intermediate_size")),
          hidden_(load.integer("hidden_size")),
          share_(share(load, count_)),
          first_(share_.experts.empty() ? 0 : share_.experts.front()),
          slots_(static_cast<std::int64_t>(share_.experts.size())),
          quantised_(load.has(path_ + "gate_up_proj_blocks")),
          part_(width_part(share_.width, width_, quantised_ ? kMxBlock : 1)) {}

    // gate and up rows stay interleaved: g0, u0, g1, u1, ...
    void load() {
        if (quantised_) {
            load_blocks();
        } else {
            load_bf16();
        }
        fill_leading(load_.parameter(path_ + "w13_bias", {slots_, 2 * part_.local}), 1,
                     mine("gate_up_proj_bias", {count_, 2 * width_}).narrow(1, 2 * part_.begin, 2 * part_.count));
        const RecordingParameter down_bias = load_.parameter(path_ + "w2_bias", {slots_, hidden_});
        if (share_.width.rank == 0) {
            rules::copy(down_bias, mine("down_proj_bias", {count_, hidden_}));
        } else {
            down_bias.zero_();  // added once, by the first rank
        }
    }

private:
    // This engine gives every rank the same number of neighbouring experts and ignores the placement.
    static rules::ExpertShare share(const LoadContext& load, std::int64_t count) {
        if (load.layout().ep && (load.layout().redundant != 0 || count % load.pool().count != 0)) {
            refuse(fmt::format(
                "gpt-oss: {} experts and {} redundant slots cannot be spread evenly over {} ranks, and this "
                "engine would drop the remainder",
                count, load.layout().redundant, load.pool().count));
        }
        if (!load.layout().expert_map.empty()) {
            refuse("gpt-oss: this engine loads neighbouring experts whatever an expert map says; give none");
        }
        rules::ExpertShare share;
        const Split pool = load.layout().ep ? load.pool() : Split{};
        share.width = load.layout().ep ? Split{} : load.pool();
        for (std::int64_t x = 0; x < count / pool.count; ++x) {
            share.experts.push_back(pool.rank * (count / pool.count) + x);
        }
        return share;
    }

    [[nodiscard]] RecordingTensor mine(const char* name, const Dims& shape) const {
        return load_.tensor(path_ + name, shape).narrow(0, first_, slots_);
    }

    void load_bf16() {
        const RecordingTensor gate_up = mine("gate_up_proj", {count_, hidden_, 2 * width_});
        const RecordingTensor down = mine("down_proj", {count_, width_, hidden_});
        fill_leading(load_.parameter(path_ + "w13_weight", {slots_, 2 * part_.local, hidden_}), 1,
                     gate_up.narrow(2, 2 * part_.begin, 2 * part_.count).permute({0, 2, 1}));
        fill_leading(load_.parameter(path_ + "w2_weight", {slots_, hidden_, part_.local}), 2,
                     down.narrow(1, part_.begin, part_.count).permute({0, 2, 1}));
    }

    // Two values a byte, and one scale byte per block along the input side.
    void load_blocks() {
        const std::int64_t hidden_blocks = hidden_ / kMxBlock;
        const std::int64_t width_blocks = width_ / kMxBlock;
        const std::int64_t half = kMxBlock / 2;
        const auto rows = [&](const RecordingTensor& t) { return t.narrow(1, 2 * part_.begin, 2 * part_.count); };
        fill_leading(load_.parameter(path_ + "w13_weight", {slots_, 2 * part_.local, hidden_ / 2}, DType::kU8), 1,
                     rows(mine("gate_up_proj_blocks", {count_, 2 * width_, hidden_blocks, half}).flatten(2)));
        fill_leading(load_.parameter(path_ + "w13_weight_scale", {slots_, 2 * part_.local, hidden_blocks}, DType::kU8),
                     1, rows(mine("gate_up_proj_scales", {count_, 2 * width_, hidden_blocks})));
        fill_leading(load_.parameter(path_ + "w2_weight", {slots_, hidden_, part_.local / 2}, DType::kU8), 2,
                     mine("down_proj_blocks", {count_, hidden_, width_blocks, half})
                         .flatten(2)
                         .narrow(2, part_.begin / 2, part_.count / 2));
        fill_leading(load_.parameter(path_ + "w2_weight_scale", {slots_, hidden_, part_.local / kMxBlock}, DType::kU8),
                     2,
                     mine("down_proj_scales", {count_, hidden_, width_blocks})
                         .narrow(2, part_.begin / kMxBlock, part_.count / kMxBlock));
    }

    LoadContext& load_;
    std::string path_;
    std::int64_t count_;
    std::int64_t width_;
    std::int64_t hidden_;
    rules::ExpertShare share_;
    std::int64_t first_;
    std::int64_t slots_;
    bool quantised_;
    WidthPart part_;
};

void renamed_attention(LoadContext& load, const std::string& layer) {
    const std::string source = layer + "self_attn.";
    const std::string target = layer + "attn.";
    const rules::Heads heads = attention_heads(load);
    const std::int64_t hidden = load.integer("hidden_size");
    const bool bias = load.flag_or("attention_bias", true);
    if (load.tp().count > heads.kv) {
        refuse(fmt::format("{}qkv_proj: this engine cannot repeat its {} key-value heads over tp={}", target, heads.kv,
                           load.tp().count));
    }
    const rules::HeadSplits splits = rules::head_splits(load, target + "qkv_proj", heads);
    const rules::LinearPart parts[] = {{source + "q_proj", heads.query * heads.dim, splits.query},
                                       {source + "k_proj", heads.kv * heads.dim, splits.kv},
                                       {source + "v_proj", heads.kv * heads.dim, splits.kv}};
    rules::column_parts(load, target + "qkv_proj", parts, hidden, bias);
    rules::row(load, target + "o_proj", hidden, heads.query * heads.dim, bias, source + "o_proj");
    const rules::RowPart sinks{load.tensor(source + "sinks", {heads.query}), load.tp()};
    rules::rows(load, target + "sinks", {&sinks, 1}, load.dtype());
}

}  // namespace

void gpt_oss(LoadContext& load) {
    const std::int64_t hidden = load.integer("hidden_size");
    const std::int64_t vocab = load.integer("vocab_size");
    const std::int64_t experts = load.integer("num_local_experts");
    rules::vocabulary(load, "model.embed_tokens.weight", vocab, hidden, "model.embedding.weight");
    rules::replicated(load, "model.norm.weight", {hidden});
    if (!load.flag_or("tie_word_embeddings", false)) {
        rules::vocabulary(load, "lm_head.weight", vocab, hidden);
    }
    for (std::int64_t n = 0; n < load.integer("num_hidden_layers"); ++n) {
        const std::string layer = layer_path(n);
        layer_norms(load, layer);
        renamed_attention(load, layer);
        rules::replicated(load, layer + "mlp.router.weight", {experts, hidden});
        rules::replicated(load, layer + "mlp.router.bias", {experts});
        Experts(load, layer + "mlp.experts.").load();
    }
}

}  // namespace sluice::loaders

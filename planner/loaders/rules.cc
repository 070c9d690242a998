#include "planner/loaders/rules.h"

#include "planner/loaders/block_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace sluice::rules {
namespace {

constexpr std::int64_t kVocabularyPadding = 64;

DType weight_dtype(const LoadContext& load, const std::string& path) {
    return load.has(path + ".weight_scale_inv") ? load.tensor(path + ".weight").dtype() : load.dtype();
}

}  // namespace

void copy(const RecordingParameter& destination, const RecordingTensor& source) {
    if (source.dim() == 0 && destination.dim() == 1) {
        copy(destination, source.reshape({1}));
    } else if (source.dtype() != destination.dtype() && is_floating(source.dtype()) &&
               is_floating(destination.dtype())) {
        destination.copy_(source.to(destination.dtype()));
    } else {
        destination.copy_(source);
    }
}

void replicated(LoadContext& load, const std::string& name, const Dims& shape) {
    replicated(load, name, shape, load.dtype());
}

void replicated(LoadContext& load, const std::string& name, const Dims& shape, DType dtype,
                const std::string& parameter) {
    copy(load.parameter(parameter.empty() ? name : parameter, shape, dtype), load.tensor(name, shape));
}

void rows(LoadContext& load, const std::string& parameter, std::span<const RowPart> parts, DType dtype) {
    Dims shape = parts.front().source.sizes();
    shape[0] = 0;
    for (const RowPart& part : parts) {
        const std::int64_t size = part.source.size(0);
        shape[0] +=
            part.split.piece(size, fmt::format("parameter {}: {} of {} rows", parameter, part.source.name(), size));
    }
    const RecordingParameter whole = load.parameter(parameter, shape, dtype);
    std::int64_t at = 0;
    for (const RowPart& part : parts) {
        const std::int64_t count = part.source.size(0) / part.split.count;
        copy(whole.narrow(0, at, count), part.source.narrow(0, part.split.rank * count, count));
        at += count;
    }
}

void column_parts(LoadContext& load, const std::string& module, std::span<const LinearPart> parts, std::int64_t in,
                  bool bias) {
    const auto load_suffix = [&](const char* suffix, DType dtype, auto shape_of, auto split_of) {
        std::vector<RowPart> sources;
        sources.reserve(parts.size());
        for (const LinearPart& part : parts) {
            sources.push_back({load.tensor(part.path + suffix, shape_of(part)), split_of(part)});
        }
        rows(load, module + suffix, sources, dtype);
    };
    const auto plain_split = [](const LinearPart& part) { return part.split; };
    load_suffix(
        ".weight", weight_dtype(load, parts.front().path), [&](const LinearPart& part) { return Dims{part.out, in}; },
        plain_split);
    if (bias) {
        load_suffix(".bias", load.dtype(), [](const LinearPart& part) { return Dims{part.out}; }, plain_split);
    }
    if (load.has(parts.front().path + ".weight_scale_inv")) {
        const std::int64_t block = scale_block(load);
        load_suffix(
            ".weight_scale_inv", DType::kF32,
            [&](const LinearPart& part) { return Dims{ceil_div(part.out, block), ceil_div(in, block)}; },
            [&](const LinearPart& part) {
                const Split split = scale_split(part.split, part.out, block, module + ".weight");
                if (&part != &parts.back()) {
                    check_merged_part(part.out / split.count, block, module + ".weight");
                }
                return split;
            });
    }
}

void column(LoadContext& load, const std::string& module, std::int64_t out, std::int64_t in, bool bias) {
    const LinearPart part{module, out, load.tp()};
    column_parts(load, module, {&part, 1}, in, bias);
}

void row(LoadContext& load, const std::string& module, std::int64_t out, std::int64_t in, bool bias,
         const std::string& source) {
    const std::string& path = source.empty() ? module : source;
    const auto load_columns = [&](const char* suffix, DType dtype, std::int64_t height, std::int64_t width,
                                  const Split& split) {
        const std::string parameter = module + suffix;
        const std::int64_t count = split.piece(width, fmt::format("parameter {}: {} columns", parameter, width));
        copy(load.parameter(parameter, {height, count}, dtype),
             load.tensor(path + suffix, {height, width}).narrow(1, split.rank * count, count));
    };
    load_columns(".weight", weight_dtype(load, path), out, in, load.tp());
    if (bias) {
        replicated(load, path + ".bias", {out}, load.dtype(), module + ".bias");
    }
    if (load.has(path + ".weight_scale_inv")) {
        const std::int64_t block = scale_block(load);
        load_columns(".weight_scale_inv", DType::kF32, ceil_div(out, block), ceil_div(in, block),
                     scale_split(load.tp(), in, block, module + ".weight"));
    }
}

void gated_mlp(LoadContext& load, const std::string& path, std::int64_t width, std::int64_t hidden, bool bias) {
    const LinearPart parts[] = {{path + "gate_proj", width, load.tp()}, {path + "up_proj", width, load.tp()}};
    column_parts(load, path + "gate_up_proj", parts, hidden, bias);
    row(load, path + "down_proj", hidden, width, bias);
}

HeadSplits head_splits(const LoadContext& load, const std::string& module, const Heads& heads) {
    const Split tp = load.tp();
    if (heads.query % tp.count != 0) {
        refuse(fmt::format("{}: {} query heads cannot be spread over tp={}", module, heads.query, tp.count));
    }
    if (heads.kv >= tp.count ? heads.kv % tp.count != 0 : tp.count % heads.kv != 0) {
        refuse(fmt::format("{}: {} key-value heads can be neither spread nor repeated evenly over tp={}", module,
                           heads.kv, tp.count));
    }
    const std::int64_t sharing = std::max<std::int64_t>(1, tp.count / heads.kv);
    return {tp, {tp.count / sharing, tp.rank / sharing}};
}

void qkv(LoadContext& load, const std::string& path, const Heads& heads, std::int64_t hidden, bool bias) {
    const std::string module = path + "qkv_proj";
    const HeadSplits splits = head_splits(load, module, heads);
    const LinearPart parts[] = {{path + "q_proj", heads.query * heads.dim, splits.query},
                                {path + "k_proj", heads.kv * heads.dim, splits.kv},
                                {path + "v_proj", heads.kv * heads.dim, splits.kv}};
    column_parts(load, module, parts, hidden, bias);
}

void vocabulary(LoadContext& load, const std::string& name, std::int64_t vocab, std::int64_t hidden,
                const std::string& parameter) {
    const std::string& target = parameter.empty() ? name : parameter;
    const std::int64_t padded = ceil_div(vocab, kVocabularyPadding) * kVocabularyPadding;
    const Split tp = load.tp();
    const std::int64_t local =
        tp.piece(padded, fmt::format("parameter {}: a vocabulary of {} padded to {} rows", target, vocab, padded));
    const RecordingTensor source = load.tensor(name, {vocab, hidden});
    const std::int64_t begin = std::min(tp.rank * local, vocab);
    const std::int64_t count = std::min(begin + local, vocab) - begin;
    const RecordingParameter table = load.parameter(target, {local, hidden});
    copy(table.narrow(0, 0, count), source.narrow(0, begin, count));
    table.narrow(0, count, local - count).zero_();
}

}  // namespace sluice::rules

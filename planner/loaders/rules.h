#pragma once

#include "planner/loaders/load_context.h"

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

/// The rules that engines load by, as functions that a loader is written with. Each declares one parameter (or the
/// parameters of one layer) and copies this rank's share of the checkpoint into it. Linear weights are [out, in].
/// A source of another floating dtype than its parameter is converted by a declared conversion.
namespace sluice::rules {

/// destination.copy_(source), with the conversion declared where dtypes differ; a 0-d source fills a parameter of one
/// element.
void copy(const RecordingParameter& destination, const RecordingTensor& source);

/// The whole tensor on every rank: norms, routers, biases of row-parallel layers. The parameter has the tensor's name.
void replicated(LoadContext& load, const std::string& name, const Dims& shape);
void replicated(LoadContext& load, const std::string& name, const Dims& shape, DType dtype,
                const std::string& parameter = "");

/// Rows of `source` that this rank takes: those of piece split.rank.
struct RowPart {
    RecordingTensor source;
    Split split;
};
/// One parameter made of this rank's rows of each part, one below the other: column-parallel, merged and qkv tensors,
/// biases, per-head vectors.
void rows(LoadContext& load, const std::string& parameter, std::span<const RowPart> parts, DType dtype);

/// A linear layer, or a part of a fused one: tensors `path`.weight [out, in], `path`.bias [out] when there is one, and
/// `path`.weight_scale_inv when the checkpoint is block-quantised (which then the parameters are too).
struct LinearPart {
    std::string path;
    std::int64_t out;
    Split split;
};
/// The parameters module.weight, module.bias, module.weight_scale_inv made of the rows of the parts.
void column_parts(LoadContext& load, const std::string& module, std::span<const LinearPart> parts, std::int64_t in,
                  bool bias = false);

/// Column-parallel: rows cut over tp.
void column(LoadContext& load, const std::string& module, std::int64_t out, std::int64_t in, bool bias = false);
/// Row-parallel: columns cut over tp; the bias is whole on every rank. `source` is the checkpoint's path where it is
/// not `module`.
void row(LoadContext& load, const std::string& module, std::int64_t out, std::int64_t in, bool bias = false,
         const std::string& source = "");
/// mlp.gate_up_proj (gate rows, then up rows) and mlp.down_proj of a gated MLP; `path` ends with a dot.
void gated_mlp(LoadContext& load, const std::string& path, std::int64_t width, std::int64_t hidden, bool bias = false);

struct Heads {
    std::int64_t query;
    std::int64_t kv;
    std::int64_t dim;
};
/// How q and how k and v are cut over tp. With more ranks than KV heads t/kv neighbouring ranks share one head. Refuses
/// heads that do not divide, naming `module`.
struct HeadSplits {
    Split query;
    Split kv;
};
HeadSplits head_splits(const LoadContext& load, const std::string& module, const Heads& heads);
/// path + qkv_proj from path + q_proj, k_proj, v_proj.
void qkv(LoadContext& load, const std::string& path, const Heads& heads, std::int64_t hidden, bool bias = false);

/// Embedding or head: rows padded to a multiple of 64, cut over tp; the last rank's tail is zero.
void vocabulary(LoadContext& load, const std::string& name, std::int64_t vocab, std::int64_t hidden,
                const std::string& parameter = "");

}  // namespace sluice::rules

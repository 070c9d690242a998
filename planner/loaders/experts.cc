#include "planner/loaders/experts.h"

#include "planner/loaders/block_scales.h"
#include "planner/loaders/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace sluice::rules {
namespace {

constexpr const char* kScale = ".weight_scale_inv";

// Copies one expert's gate, up and down tensors (or their scales) into slot `slot`. `width` is this rank's part.
struct SlotTargets {
    RecordingParameter w13;
    RecordingParameter w2;
    std::int64_t width;
    std::int64_t rank;
};

void load_slots(LoadContext& load, const RoutedExperts& experts, const ExpertShare& share, const SlotTargets& targets,
                const char* suffix, const Dims& in_shape, const Dims& out_shape) {
    const std::int64_t width = targets.width;
    const std::int64_t begin = targets.rank * width;
    std::string name;  // one buffer: there are tens of thousands of names
    const auto source = [&](std::int64_t expert, const std::string& module, const Dims& shape) {
        name.assign(experts.path).append(std::to_string(expert)).append(".").append(module).append(suffix);
        return load.tensor(name, shape);
    };
    for (std::size_t slot = 0; slot < share.experts.size(); ++slot) {
        const std::int64_t expert = share.experts[slot];
        const auto at = static_cast<std::int64_t>(slot);
        const RecordingParameter w13 = targets.w13.select(0, at);
        copy(w13.narrow(0, 0, width), source(expert, experts.gate, in_shape).narrow(0, begin, width));
        copy(w13.narrow(0, width, width), source(expert, experts.up, in_shape).narrow(0, begin, width));
        copy(targets.w2.select(0, at), source(expert, experts.down, out_shape).narrow(1, begin, width));
    }
}

// [E, height, width], whichever of the last two the checkpoint has first.
RecordingTensor oriented(const LoadContext& load, const std::string& name, std::int64_t experts, std::int64_t height,
                         std::int64_t width) {
    const RecordingTensor tensor = load.tensor(name);
    if (height == width) {
        refuse(fmt::format("{}: with {} rows and columns its orientation cannot be told from its shape", name, height));
    }
    return tensor.sizes() == Dims{experts, width, height} ? tensor.transpose(1, 2)
                                                          : load.tensor(name, {experts, height, width});
}

}  // namespace

ExpertShare expert_share(LoadContext& load, std::string_view path, std::int64_t experts, std::int64_t expert_groups) {
    const Split pool = load.pool();
    const WorkerLayout& layout = load.layout();
    ExpertShare share;
    if (!layout.expert_map.empty() && (!layout.ep || layout.placement != ExpertPlacement::kLinear)) {
        refuse("an expert map needs ep=on and placement=linear: only then slots of whole experts lie on ranks");
    }
    if (!layout.ep) {
        if (layout.redundant != 0) {
            refuse(fmt::format("redundant={} needs ep=on: without it every rank holds a part of every expert",
                               layout.redundant));
        }
        share.experts.resize(static_cast<std::size_t>(experts));
        std::iota(share.experts.begin(), share.experts.end(), 0);
        share.width = pool;
        return share;
    }
    const std::int64_t slots = experts + layout.redundant;
    if (layout.placement == ExpertPlacement::kRoundRobin && expert_groups > 1 && layout.redundant == 0) {
        for (std::int64_t expert = pool.rank; expert < experts; expert += pool.count) {
            share.experts.push_back(expert);
        }
        return share;
    }
    const std::int64_t base = slots / pool.count;
    const std::int64_t extra = slots % pool.count;
    const std::int64_t first = pool.rank * base + std::min(pool.rank, extra);
    const std::int64_t end = first + base + (pool.rank < extra ? 1 : 0);
    if (const std::vector<std::int64_t>* map = load.expert_slots(path, experts, slots)) {
        share.experts.assign(map->begin() + first, map->begin() + end);
        return share;
    }
    for (std::int64_t slot = first; slot < end; ++slot) {
        share.experts.push_back(slot < experts ? slot : (slot - experts) % experts);
    }
    return share;
}

void fused_experts(const RecordingParameter& destination, const RecordingTensor& source, const ExpertShare& share) {
    copy(destination, source.index_select(0, share.experts));
}

void routed_experts(LoadContext& load, const RoutedExperts& experts) {
    const ExpertShare share = expert_share(load, experts.path, experts.count, experts.groups);
    const std::string w13_name = experts.path + "w13_weight";
    const std::string w2_name = experts.path + "w2_weight";
    const auto slots = static_cast<std::int64_t>(share.experts.size());
    const std::int64_t width =
        share.width.piece(experts.width, fmt::format("parameter {}: an expert width of {}", w13_name, experts.width));

    if (load.has(experts.path + "gate_up_proj")) {
        const RecordingParameter w13 = load.parameter(w13_name, {slots, 2 * width, experts.hidden});
        const RecordingParameter w2 = load.parameter(w2_name, {slots, experts.hidden, width});
        const std::int64_t begin = share.width.rank * width;
        const std::vector<RecordingTensor> halves =
            oriented(load, experts.path + "gate_up_proj", experts.count, 2 * experts.width, experts.hidden).chunk(2, 1);
        fused_experts(w13.narrow(1, 0, width), halves[0].narrow(1, begin, width), share);
        fused_experts(w13.narrow(1, width, width), halves[1].narrow(1, begin, width), share);
        fused_experts(w2,
                      oriented(load, experts.path + "down_proj", experts.count, experts.hidden, experts.width)
                          .narrow(2, begin, width),
                      share);
        return;
    }

    const std::string first = experts.path + "0." + experts.gate;
    const bool scaled = load.has(first + kScale);
    const DType dtype = scaled ? load.tensor(first + ".weight").dtype() : load.dtype();
    load_slots(load, experts, share,
               {load.parameter(w13_name, {slots, 2 * width, experts.hidden}, dtype),
                load.parameter(w2_name, {slots, experts.hidden, width}, dtype), width, share.width.rank},
               ".weight", {experts.width, experts.hidden}, {experts.hidden, experts.width});
    if (scaled) {
        const std::int64_t block = scale_block(load);
        scale_split(share.width, experts.width, block, w13_name);
        check_merged_part(width, block, w13_name);
        const auto blocks = [block](std::int64_t size) { return ceil_div(size, block); };
        const std::int64_t in = blocks(experts.hidden);
        load_slots(load, experts, share,
                   {load.parameter(w13_name + "_scale_inv", {slots, 2 * blocks(width), in}, DType::kF32),
                    load.parameter(w2_name + "_scale_inv", {slots, in, blocks(width)}, DType::kF32), blocks(width),
                    share.width.rank},
                   kScale, {blocks(experts.width), in}, {in, blocks(experts.width)});
    }
}

}  // namespace sluice::rules

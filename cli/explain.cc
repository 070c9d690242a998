#include "cli/explain.h"

#include "planner/near_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace sluice::cli {

namespace {

/// One side of a strided copy as ranges of indices: the box that bounds it.
std::string ranges(std::int64_t first_byte, std::int64_t last_byte, const Dims& shape, std::int64_t element) {
    if (shape.empty()) {
        return "[]";
    }
    std::string text = "[";
    const Dims strides = contiguous_strides(shape, element);
    std::int64_t first = first_byte;
    std::int64_t last = last_byte;
    for (std::size_t d = 0; d < shape.size(); ++d) {
        const std::int64_t begin = first / strides[d];
        const std::int64_t end = last / strides[d] + 1;
        first %= strides[d];
        last %= strides[d];
        text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", begin, end);
    }
    return text + "]";
}

std::int64_t last_offset(std::int64_t offset, const Dims& sizes, const Dims& strides) {
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        offset += (sizes[d] - 1) * strides[d];
    }
    return offset;
}

const char* name_of(Path path) {
    switch (path) {
        case Path::kDirect:
            return "direct";
        case Path::kPacked:
            return "packed";
        case Path::kMapped:
            return "mapped";
    }
    return "unknown";
}

Result<ParameterId> find_parameter(const Demand& demand, const std::string& name) {
    std::vector<std::string_view> names;
    for (std::size_t i = 0; i < demand.parameters.size(); ++i) {
        if (demand.parameters[i].name == name) {
            return static_cast<ParameterId>(i);
        }
        names.push_back(demand.parameters[i].name);
    }
    return invalid_argument(fmt::format("--explain: the worker has no parameter {}{}", name, near_names(name, names)));
}

}  // namespace

Result<std::string> explain(const Catalogue& catalogue, const BuiltPlan& plan, const std::string& rank_and_parameter) {
    const std::size_t colon = rank_and_parameter.find(':');
    if (colon == std::string::npos) {
        return invalid_argument(fmt::format("--explain {}: give it as RANK:PARAM", rank_and_parameter));
    }
    SLUICE_ASSIGN_OR_RETURN(const int rank, parse_count("--explain rank", rank_and_parameter.substr(0, colon), 0));
    const std::optional<DemandId> id = demand_of_worker(plan, rank);
    if (!id) {
        return invalid_argument(
            fmt::format("--explain {}: the layouts make {} workers, from 0", rank_and_parameter, plan.workers));
    }
    const Demand& demand = plan.demands[static_cast<std::size_t>(*id)];
    SLUICE_ASSIGN_OR_RETURN(const ParameterId wanted, find_parameter(demand, rank_and_parameter.substr(colon + 1)));
    const Parameter& parameter = demand.parameters[static_cast<std::size_t>(wanted)];
    std::string text = fmt::format("worker {}: {} {} {}, {} bytes\n", rank, parameter.name, to_string(parameter.dtype),
                                   to_string(std::span<const std::int64_t>(parameter.shape)), parameter.bytes());
    const std::int64_t element = size_of(parameter.dtype);
    for (const CopyRecord& record : demand.records) {
        if (record.parameter != wanted || record.copy.items() == 0) {
            continue;
        }
        const CatalogueTensor& tensor = catalogue[record.tensor];
        const std::int64_t item = record.copy.item;
        const std::int64_t written = record.converts() ? element : item;
        text += fmt::format(
            "  {}  <-  {} {}{}{}\n",
            ranges(record.copy.dst_offset,
                   last_offset(record.copy.dst_offset, record.copy.sizes, record.copy.dst_strides) + written - 1,
                   parameter.shape, element),
            tensor.name,
            ranges(record.copy.src_offset,
                   last_offset(record.copy.src_offset, record.copy.sizes, record.copy.src_strides) + item - 1,
                   tensor.shape, size_of(tensor.dtype)),
            tensor.dtype != record.source_dtype ? fmt::format(" viewed as {}", to_string(record.source_dtype))
                                                : std::string(),
            record.converts() ? fmt::format(" converted from {} to {}", to_string(record.source_dtype),
                                            to_string(record.parameter_dtype))
                              : std::string());
    }
    for (const ZeroFill& fill : demand.fills) {
        if (fill.parameter == wanted && fill.box.items() > 0) {
            text += fmt::format(
                "  {}  <-  zeros, by the loader\n",
                ranges(fill.box.dst_offset,
                       last_offset(fill.box.dst_offset, fill.box.sizes, fill.box.dst_strides) + fill.box.item - 1,
                       parameter.shape, element));
        }
    }
    if (std::find(demand.not_from_trainer.begin(), demand.not_from_trainer.end(), wanted) !=
        demand.not_from_trainer.end()) {
        text += "  not from the trainer\n";
    }
    struct Total {
        std::int64_t bytes = 0;
        std::int64_t pieces = 0;
        std::int64_t chunks = 0;
    };
    std::map<std::pair<int, Path>, Total> totals;
    for (const Chunk& chunk : plan.plan.routes[static_cast<std::size_t>(*id)].chunks) {
        Total here;
        for (const Piece& piece : chunk.pieces) {
            if (piece.parameter == wanted) {
                here.bytes += piece.wire_bytes();
                ++here.pieces;
            }
        }
        if (here.pieces > 0) {
            Total& total = totals[{chunk.owner, chunk.path}];
            total.bytes += here.bytes;
            total.pieces += here.pieces;
            ++total.chunks;
        }
    }
    for (const auto& [from, total] : totals) {
        text += fmt::format("  from trainer {}, {}: {} bytes in {} pieces of {} chunks\n", from.first,
                            name_of(from.second), total.bytes, total.pieces, total.chunks);
    }
    return text;
}

}  // namespace sluice::cli

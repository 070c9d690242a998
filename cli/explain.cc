#include "cli/explain.h"

#include "cli/common_options.h"
#include "planner/near_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace sluice::cli {

namespace {

/// First and last byte of one side of a copy.
using Span = std::pair<std::int64_t, std::int64_t>;

Span span_of(std::int64_t offset, const Dims& sizes, const Dims& strides, std::int64_t item) {
    std::int64_t last = offset + item - 1;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        last += (sizes[d] - 1) * strides[d];
    }
    return {offset, last};
}

/// The box that bounds a span of bytes of a contiguous tensor, as ranges of indices.
std::string ranges(Span span, const Dims& shape, std::int64_t element) {
    std::string text = "[";
    const Dims strides = contiguous_strides(shape, element);
    for (std::size_t d = 0; d < shape.size(); ++d) {
        text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", span.first / strides[d], span.second / strides[d] + 1);
        span.first %= strides[d];
        span.second %= strides[d];
    }
    return text + "]";
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

/// A copy as bytes of its destination see it: item is what one write covers there.
struct Written {
    StridedCopy copy;
    std::int64_t item;

    template <class Copying>
    explicit Written(const Copying& from)
        : copy(coalesce(from.copy, from.converts())),
          item(from.converts() ? size_of(from.parameter_dtype) : copy.item) {}

    [[nodiscard]] Span span() const { return span_of(copy.dst_offset, copy.sizes, copy.dst_strides, item); }

    /// Where the source of byte `at` of the destination lies (of a converted element: its first byte), or nothing where
    /// none is written.
    [[nodiscard]] std::optional<std::int64_t> source_of(std::int64_t at) const {
        std::int64_t rest = at - copy.dst_offset;
        std::int64_t source = copy.src_offset;
        for (std::size_t d = 0; d < copy.sizes.size() && rest >= 0; ++d) {
            const std::int64_t index = std::min(rest / copy.dst_strides[d], copy.sizes[d] - 1);
            rest -= index * copy.dst_strides[d];
            source += index * copy.src_strides[d];
        }
        if (rest < 0 || rest >= item) {
            return std::nullopt;
        }
        return source + (item == copy.item ? rest : 0);
    }
};

/// One line for each piece that brings bytes of a record. A piece may go on behind the record, where the neighbour in the
/// owner's memory lands next to it.
std::string pieces_of(const CopyRecord& record, const Parameter& parameter, const CatalogueTensor& tensor,
                      const Route& route) {
    std::multimap<std::int64_t, std::string> lines;  // by destination
    const Written wanted(record);
    for (const Chunk& chunk : route.chunks) {
        for (const Piece& piece : chunk.pieces) {
            if (piece.parameter != record.parameter) {
                continue;
            }
            const Written brought(piece);
            const Span to{std::max(brought.span().first, wanted.span().first),
                          std::min(brought.span().second, wanted.span().second)};
            const auto first = wanted.source_of(to.first);
            const auto last = wanted.source_of(to.second);
            if (to.first > to.second || !first || !last || !brought.source_of(to.first)) {
                continue;
            }
            const std::int64_t end = *last + (wanted.item == wanted.copy.item ? 0 : wanted.copy.item - 1);
            lines.emplace(to.first, fmt::format("      {}  <-  {} of trainer {}, {}, {}{} bytes\n",
                                                ranges(to, parameter.shape, size_of(parameter.dtype)),
                                                ranges({*first, end}, tensor.shape, size_of(tensor.dtype)), chunk.owner,
                                                name_of(chunk.path), to == brought.span() ? "" : "in a piece of ",
                                                piece.wire_bytes()));
        }
    }
    std::string text;
    for (const auto& [at, line] : lines) {
        text += line;
    }
    return text;
}

std::string totals_of(ParameterId wanted, const Route& route) {
    struct Total {
        std::int64_t bytes = 0;
        std::int64_t pieces = 0;
        std::int64_t chunks = 0;
    };
    std::map<std::pair<int, Path>, Total> totals;
    for (const Chunk& chunk : route.chunks) {
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
    std::string text;
    for (const auto& [from, total] : totals) {
        text += fmt::format("  from trainer {}, {}: {} bytes in {} pieces of {} chunks\n", from.first,
                            name_of(from.second), total.bytes, total.pieces, total.chunks);
    }
    return text;
}

}  // namespace

Result<std::string> explain(const Catalogue& catalogue, std::span<const Demand> demands, const Plan& plan,
                            const std::string& rank_and_parameter) {
    const std::size_t colon = rank_and_parameter.find(':');
    if (colon == std::string::npos) {
        return invalid_argument(fmt::format("--explain {}: give it as RANK:PARAM", rank_and_parameter));
    }
    SLUICE_ASSIGN_OR_RETURN(const int rank, parse_count("--explain rank", rank_and_parameter.substr(0, colon), 0));
    const auto reads = [rank](const Route& route) {
        return std::find(route.workers.begin(), route.workers.end(), rank) != route.workers.end();
    };
    const auto found = std::find_if(plan.routes.begin(), plan.routes.end(), reads);
    if (found == plan.routes.end()) {
        return invalid_argument(fmt::format("--explain {}: the plan has no worker {}", rank_and_parameter, rank));
    }
    const Demand& demand = demands[static_cast<std::size_t>(found - plan.routes.begin())];
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
        const Span from = span_of(record.copy.src_offset, record.copy.sizes, record.copy.src_strides, record.copy.item);
        text += fmt::format("  {}  <-  {} {}{}{}\n", ranges(Written(record).span(), parameter.shape, element),
                            tensor.name, ranges(from, tensor.shape, size_of(tensor.dtype)),
                            tensor.dtype != record.source_dtype
                                ? fmt::format(" viewed as {}", to_string(record.source_dtype))
                                : std::string(),
                            record.converts() ? fmt::format(" converted from {} to {}", to_string(record.source_dtype),
                                                            to_string(record.parameter_dtype))
                                              : std::string());
        text += pieces_of(record, parameter, tensor, *found);
    }
    for (const ZeroFill& fill : demand.fills) {
        if (fill.parameter == wanted && fill.box.items() > 0) {
            text +=
                fmt::format("  {}  <-  zeros, by the loader\n",
                            ranges(span_of(fill.box.dst_offset, fill.box.sizes, fill.box.dst_strides, fill.box.item),
                                   parameter.shape, element));
        }
    }
    if (std::find(demand.not_from_trainer.begin(), demand.not_from_trainer.end(), wanted) !=
        demand.not_from_trainer.end()) {
        text += "  not from the trainer\n";
    }
    return text + totals_of(wanted, *found);
}

}  // namespace sluice::cli

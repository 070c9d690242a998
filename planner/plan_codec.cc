#include "planner/plan_codec.h"

#include "planner/box_stream.h"
#include "planner/plan.pb.h"
#include "planner/plan_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

namespace sluice {
namespace {

// A body must fit protobuf's 32-bit lengths with room to spare.
constexpr std::size_t kMostBodyBytes = std::size_t{1} << 30;

Status impossible(PlanMessage kind, const std::string& what) {
    return invalid_argument(fmt::format("{}: {}; the sender is broken or not ours", to_string(kind), what));
}

template <class Message>
Result<Message> parse(PlanMessage kind, std::string_view bytes) {
    SLUICE_ASSIGN_OR_RETURN(const std::string_view body, open_plan_message(kind, bytes));
    Message message;
    if (body.size() > kMostBodyBytes || !message.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
        return impossible(kind, "its body is no valid message");
    }
    return message;
}

// protobuf promises equal bytes for equal messages within one build of it; that is what stable means here.
template <class Message>
std::string seal(PlanMessage kind, const Message& message) {
    return seal_plan_message(kind, message.SerializeAsString());
}

bool valid_dtype(std::int64_t value) { return value >= 0 && value < kDTypeCount; }

template <class Field, class Range>
void add_all(Field* field, const Range& values) {
    for (const auto value : values) {
        field->Add(static_cast<typename Field::value_type>(value));
    }
}

// Ranks or groups: each below `limit`.
template <class Field>
Result<std::vector<std::int32_t>> read_numbers(PlanMessage kind, const char* what, const Field& field, int limit) {
    std::vector<std::int32_t> out;
    for (const std::uint32_t value : field) {
        if (value >= static_cast<std::uint32_t>(std::max(0, limit))) {
            return impossible(kind, fmt::format("{} {} of {}", what, value, limit));
        }
        out.push_back(static_cast<std::int32_t>(value));
    }
    return out;
}

Result<std::vector<GroupId>> read_group_order(PlanMessage kind,
                                              const google::protobuf::RepeatedField<std::uint32_t>& field, int groups) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<GroupId> order, read_numbers(kind, "group", field, groups));
    std::vector<bool> seen(static_cast<std::size_t>(std::max(0, groups)), false);
    for (const GroupId group : order) {
        if (seen[static_cast<std::size_t>(group)]) {
            return impossible(kind, fmt::format("group {} comes twice in the order", group));
        }
        seen[static_cast<std::size_t>(group)] = true;
    }
    return order;
}

// Sizes of segments and buffers.
Result<std::vector<std::int64_t>> read_sizes(PlanMessage kind,
                                             const google::protobuf::RepeatedField<std::uint64_t>& field) {
    std::vector<std::int64_t> out;
    for (const std::uint64_t value : field) {
        if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
            return impossible(kind, fmt::format("a segment of {} bytes", value));
        }
        out.push_back(static_cast<std::int64_t>(value));
    }
    return out;
}

// --- Demand ---

// Also the tensors of a catalogue, which have the same fields.
template <class List>
void write_parameters(const List& parameters, wire::Parameters& out) {
    for (const auto& parameter : parameters) {
        out.add_names(parameter.name);
        out.add_dtypes(static_cast<std::uint32_t>(parameter.dtype));
        out.add_ranks(static_cast<std::uint32_t>(parameter.shape.size()));
        add_all(out.mutable_sizes(), parameter.shape);
    }
}

void write_demand(const Demand& demand, wire::Demand& out) {
    write_parameters(demand.parameters, *out.mutable_parameters());
    out.set_records(demand.records.size());
    BoxWriter records(*out.mutable_record_boxes()->mutable_numbers());
    CodedBox previous;
    for (const CopyRecord& record : demand.records) {
        records.write({record.parameter, record.tensor, static_cast<std::int64_t>(record.source_dtype),
                       static_cast<std::int64_t>(record.parameter_dtype), record.copy},
                      previous);
    }
    out.set_fills(demand.fills.size());
    BoxWriter fills(*out.mutable_fill_boxes()->mutable_numbers());
    previous = {};
    for (const ZeroFill& fill : demand.fills) {
        fills.write({fill.parameter, 0, 0, 0, fill.box}, previous);
    }
    add_all(out.mutable_not_from_trainer(), demand.not_from_trainer);
}

// Text that messages name: it must not break their line.
bool one_line(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte >= 0x20 && byte != 0x7F;
    });
}

Status read_parameters(PlanMessage kind, const wire::Parameters& in, std::vector<Parameter>& out) {
    if (in.dtypes_size() != in.names_size() || in.ranks_size() != in.names_size()) {
        return impossible(kind, "its parameter columns differ in length");
    }
    int next_size = 0;
    for (int i = 0; i < in.names_size(); ++i) {
        Parameter parameter;
        parameter.name = in.names(i);
        if (!one_line(parameter.name)) {
            return impossible(kind, fmt::format("the name of parameter {} has control characters", i));
        }
        if (!valid_dtype(in.dtypes(i)) || in.ranks(i) > kMostDims ||
            static_cast<std::int64_t>(in.ranks(i)) > in.sizes_size() - next_size) {
            return impossible(kind,
                              fmt::format("parameter {} has dtype {} and {} dimensions", i, in.dtypes(i), in.ranks(i)));
        }
        parameter.dtype = static_cast<DType>(in.dtypes(i));
        for (std::uint32_t d = 0; d < in.ranks(i); ++d) {
            parameter.shape.push_back(static_cast<std::int64_t>(in.sizes(next_size++)));
        }
        const auto elements = checked_num_elements(parameter.shape);
        if (!elements || !checked_mul(*elements, size_of(parameter.dtype))) {
            return impossible(kind, fmt::format("parameter {} has an impossible shape", i));
        }
        out.push_back(std::move(parameter));
    }
    if (next_size != in.sizes_size()) {
        return impossible(kind, "it has more sizes than dimensions");
    }
    return ok_status();
}

// True when the destination side of `copy` lies in a parameter of `bytes`, and could write every byte at most once.
bool fits_parameter(const StridedCopy& copy, std::int64_t item, std::int64_t bytes) {
    const auto extent = side_extent(copy.dst_offset, item, copy.sizes, copy.dst_strides);
    const auto items = checked_num_elements(copy.sizes);
    const auto written = items ? checked_mul(*items, item) : std::nullopt;
    return extent && *extent <= bytes && written && *written <= bytes;
}

bool fits_source(const StridedCopy& copy, std::int64_t bytes) {
    const auto extent = side_extent(copy.src_offset, copy.item, copy.sizes, copy.src_strides);
    return extent && *extent <= bytes;
}

// A conversion moves single elements between floating types; without one the item is whole elements.
bool valid_item(const CodedBox& box) {
    if (!valid_dtype(box.source_dtype) || !valid_dtype(box.parameter_dtype)) {
        return false;
    }
    return box.source_dtype == box.parameter_dtype || box.copy.item == size_of(static_cast<DType>(box.source_dtype));
}

std::int64_t destination_item(const CodedBox& box) {
    return box.source_dtype == box.parameter_dtype ? box.copy.item : size_of(static_cast<DType>(box.parameter_dtype));
}

bool valid_parameter(std::int64_t parameter, std::size_t count) {
    return parameter >= 0 && static_cast<std::uint64_t>(parameter) < count;
}

Result<Demand> read_demand(PlanMessage kind, const wire::Demand& in, const Catalogue& catalogue) {
    Demand out;
    SLUICE_RETURN_IF_ERROR(read_parameters(kind, in.parameters(), out.parameters));
    BoxReader records(in.record_boxes().numbers());
    CodedBox previous;
    for (std::uint64_t i = 0; i < in.records(); ++i) {
        const auto box = records.read(previous);
        if (!box) {
            return impossible(kind, fmt::format("copy record {} of {} is cut short", i, in.records()));
        }
        if (box->place < 0 || static_cast<std::uint64_t>(box->place) >= catalogue.size() ||
            !valid_parameter(box->parameter, out.parameters.size()) || !valid_item(*box) ||
            !fits_source(box->copy, catalogue[static_cast<TensorId>(box->place)].bytes()) ||
            !fits_parameter(box->copy, destination_item(*box),
                            out.parameters[static_cast<std::size_t>(box->parameter)].bytes())) {
            return impossible(kind, fmt::format("copy record {} leaves its tensor {} or its parameter {}", i,
                                                box->place, box->parameter));
        }
        out.records.push_back({static_cast<TensorId>(box->place), static_cast<ParameterId>(box->parameter),
                               static_cast<DType>(box->source_dtype), static_cast<DType>(box->parameter_dtype),
                               box->copy});
    }
    BoxReader fills(in.fill_boxes().numbers());
    previous = {};
    for (std::uint64_t i = 0; i < in.fills(); ++i) {
        const auto box = fills.read(previous);
        if (!box) {
            return impossible(kind, fmt::format("fill {} of {} is cut short", i, in.fills()));
        }
        if (!valid_parameter(box->parameter, out.parameters.size()) ||
            !fits_parameter(box->copy, box->copy.item,
                            out.parameters[static_cast<std::size_t>(box->parameter)].bytes())) {
            return impossible(kind, fmt::format("fill {} leaves its parameter {}", i, box->parameter));
        }
        out.fills.push_back({static_cast<ParameterId>(box->parameter), box->copy});
    }
    if (!records.done() || !fills.done()) {
        return impossible(kind, "it has more numbers than boxes");
    }
    SLUICE_ASSIGN_OR_RETURN(out.not_from_trainer, read_numbers(kind, "parameter", in.not_from_trainer(),
                                                               static_cast<int>(out.parameters.size())));
    return out;
}

// --- Chunks ---

// Pieces are coded against the last one of the same owner: chunks of several owners alternate.
using Predecessors = std::unordered_map<int, CodedBox>;

CodedBox coded(const Piece& piece) {
    return {piece.parameter, piece.segment, static_cast<std::int64_t>(piece.source_dtype),
            static_cast<std::int64_t>(piece.parameter_dtype), piece.copy};
}

Status check_piece(PlanMessage kind, std::size_t chunk, const CodedBox& box, GroupId group, const Ownership* owner) {
    const std::int64_t segments = owner != nullptr ? static_cast<std::int64_t>(owner->segment_bytes.size())
                                                   : std::numeric_limits<SegmentId>::max();
    if (!valid_item(box) || box.place < kGatheredSegment || box.place >= segments) {
        return impossible(kind, fmt::format("chunk {} reads segment {} of {}", chunk, box.place, segments));
    }
    std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
    if (owner != nullptr && box.place == kGatheredSegment) {
        const auto g = static_cast<std::size_t>(group);
        bytes = g < owner->gathered_bytes.size() ? owner->gathered_bytes[g] : 0;
    } else if (owner != nullptr) {
        bytes = owner->segment_bytes[static_cast<std::size_t>(box.place)];
    }
    if (!fits_source(box.copy, bytes)) {
        return impossible(kind, fmt::format("chunk {} reads beyond segment {} of {} bytes", chunk, box.place, bytes));
    }
    return ok_status();
}

Piece piece_of(const CodedBox& box) {
    return {static_cast<ParameterId>(box.parameter), static_cast<SegmentId>(box.place),
            static_cast<DType>(box.source_dtype), static_cast<DType>(box.parameter_dtype), box.copy};
}

// Adds the wire bytes of a piece; false when they leave what a chunk may carry.
bool add_wire_bytes(const CodedBox& box, std::int64_t chunk_bytes, std::int64_t& wire_bytes) {
    const auto items = checked_num_elements(box.copy.sizes);
    const std::int64_t item = box.source_dtype == box.parameter_dtype
                                  ? box.copy.item
                                  : std::min(box.copy.item, size_of(static_cast<DType>(box.parameter_dtype)));
    const auto bytes = items ? checked_mul(*items, item) : std::nullopt;
    if (!bytes || *bytes <= 0 || *bytes > chunk_bytes - wire_bytes) {
        return false;
    }
    wire_bytes += *bytes;
    return true;
}

Result<Path> read_path(PlanMessage kind, std::uint32_t value) {
    if (value > static_cast<std::uint32_t>(Path::kMapped)) {
        return impossible(kind, fmt::format("path {} is unknown", value));
    }
    return static_cast<Path>(value);
}

// A running column: each number is the distance to the one before, and must land in [0, limit).
class Running {
public:
    Running(const google::protobuf::RepeatedField<std::int64_t>& field, std::int64_t limit)
        : field_(field), limit_(limit) {}
    std::optional<std::int64_t> at(int i) {
        const auto sum = checked_add(value_, field_.Get(i));
        if (!sum || *sum < 0 || *sum >= limit_) {
            return std::nullopt;
        }
        return value_ = *sum;
    }

private:
    const google::protobuf::RepeatedField<std::int64_t>& field_;
    std::int64_t limit_;
    std::int64_t value_ = 0;
};

void write_route(const Route& route, wire::Route& out) {
    add_all(out.mutable_workers(), route.workers);
    wire::Chunks& chunks = *out.mutable_chunks();
    std::map<std::vector<int>, std::uint32_t> sets;
    Predecessors previous;
    BoxWriter boxes(*chunks.mutable_piece_boxes()->mutable_numbers());
    GroupId group = 0;
    int owner = 0;
    for (const Chunk& chunk : route.chunks) {
        chunks.add_groups(chunk.group - group);
        chunks.add_owners(chunk.owner - owner);
        group = chunk.group;
        owner = chunk.owner;
        chunks.add_paths(static_cast<std::uint32_t>(chunk.path));
        chunks.add_pieces(chunk.pieces.size());
        const auto number_of = [&](const std::vector<int>& ranks) {
            const auto [set, added] = sets.try_emplace(ranks, static_cast<std::uint32_t>(sets.size()));
            if (added) {
                add_all(out.add_alternate_sets()->mutable_ranks(), ranks);
            }
            return set->second;
        };
        chunks.add_alternates(number_of(chunk.alternates));
        chunks.add_mirrors(number_of(chunk.mirrors));
        for (const Piece& piece : chunk.pieces) {
            boxes.write(coded(piece), previous[chunk.owner]);
        }
    }
}

Result<Route> read_route(PlanMessage kind, const wire::Route& in, const PlanLimits& limits,
                         std::span<const Parameter> parameters, std::span<const Ownership> owners) {
    Route out;
    SLUICE_ASSIGN_OR_RETURN(out.workers, read_numbers(kind, "worker", in.workers(), limits.workers));
    std::vector<std::vector<int>> sets;
    for (const wire::RankSet& set : in.alternate_sets()) {
        SLUICE_ASSIGN_OR_RETURN(std::vector<int> ranks, read_numbers(kind, "alternate", set.ranks(), limits.trainers));
        sets.push_back(std::move(ranks));
    }
    const wire::Chunks& chunks = in.chunks();
    const int count = chunks.groups_size();
    if (chunks.owners_size() != count || chunks.paths_size() != count || chunks.pieces_size() != count ||
        chunks.alternates_size() != count || chunks.mirrors_size() != count || chunks.ids_size() != 0) {
        return impossible(kind, "its chunk columns differ in length");
    }
    BoxReader boxes(chunks.piece_boxes().numbers());
    Predecessors previous;
    Running groups(chunks.groups(), limits.groups);
    Running ranks(chunks.owners(), limits.trainers);
    for (int i = 0; i < count; ++i) {
        const auto group = groups.at(i);
        const auto owner = ranks.at(i);
        if (!group || !owner || chunks.alternates(i) >= sets.size() || chunks.mirrors(i) >= sets.size()) {
            return impossible(kind, fmt::format("chunk {} names a group, owner or set of alternates that is none", i));
        }
        Chunk chunk;
        chunk.group = static_cast<GroupId>(*group);
        chunk.owner = static_cast<int>(*owner);
        SLUICE_ASSIGN_OR_RETURN(chunk.path, read_path(kind, chunks.paths(i)));
        const Ownership* bounds = owners.empty() ? nullptr : &owners[static_cast<std::size_t>(chunk.owner)];
        for (std::uint64_t p = 0; p < chunks.pieces(i); ++p) {
            const auto box = boxes.read(previous[chunk.owner]);
            if (!box) {
                return impossible(kind, fmt::format("piece {} of chunk {} is cut short", p, i));
            }
            SLUICE_RETURN_IF_ERROR(check_piece(kind, static_cast<std::size_t>(i), *box, chunk.group, bounds));
            if (!valid_parameter(box->parameter, parameters.size()) ||
                !fits_parameter(box->copy, destination_item(*box),
                                parameters[static_cast<std::size_t>(box->parameter)].bytes())) {
                return impossible(kind, fmt::format("chunk {} writes outside parameter {}", i, box->parameter));
            }
            if (!add_wire_bytes(*box, limits.chunk_bytes, chunk.wire_bytes)) {
                return impossible(
                    kind, fmt::format("chunk {} carries more than {} bytes, or an empty piece", i, limits.chunk_bytes));
            }
            chunk.pieces.push_back(piece_of(*box));
        }
        if (chunk.pieces.empty()) {
            return impossible(kind, fmt::format("chunk {} is empty", i));
        }
        chunk.alternates = sets[chunks.alternates(i)];
        chunk.mirrors = sets[chunks.mirrors(i)];
        out.chunks.push_back(std::move(chunk));
    }
    if (!boxes.done()) {
        return impossible(kind, "it has more numbers than pieces");
    }
    return out;
}

void write_served(const ServedDemand& demand, wire::ServedDemand& out) {
    out.set_demand(static_cast<std::uint32_t>(demand.demand));
    add_all(out.mutable_workers(), demand.workers);
    wire::Chunks& chunks = *out.mutable_chunks();
    BoxWriter boxes(*chunks.mutable_piece_boxes()->mutable_numbers());
    CodedBox previous;
    ChunkId id = 0;
    GroupId group = 0;
    for (const ServedChunk& chunk : demand.chunks) {
        chunks.add_ids(chunk.id - id);
        chunks.add_groups(chunk.group - group);
        id = chunk.id;
        group = chunk.group;
        chunks.add_paths(static_cast<std::uint32_t>(chunk.path));
        chunks.add_pieces(chunk.pieces.size());
        for (const Piece& piece : chunk.pieces) {
            CodedBox box = coded(piece);
            box.parameter = 0;
            // The destination is not the owner's business: without its strides more of the source is one run.
            box.copy = coalesce(packed_from_source(piece.copy, 0), piece.converts());
            box.copy.dst_offset = 0;
            boxes.write(box, previous);
        }
    }
}

Result<ServedDemand> read_served(PlanMessage kind, const wire::ServedDemand& in, const PlanLimits& limits,
                                 const Ownership& own) {
    ServedDemand out;
    if (in.demand() > static_cast<std::uint32_t>(std::numeric_limits<DemandId>::max())) {
        return impossible(kind, fmt::format("demand {} is none", in.demand()));
    }
    out.demand = static_cast<DemandId>(in.demand());
    SLUICE_ASSIGN_OR_RETURN(out.workers, read_numbers(kind, "worker", in.workers(), limits.workers));
    const wire::Chunks& chunks = in.chunks();
    const int count = chunks.groups_size();
    if (chunks.ids_size() != count || chunks.paths_size() != count || chunks.pieces_size() != count ||
        chunks.owners_size() != 0 || chunks.alternates_size() != 0 || chunks.mirrors_size() != 0) {
        return impossible(kind, "its chunk columns differ in length");
    }
    BoxReader boxes(chunks.piece_boxes().numbers());
    CodedBox previous;
    Running ids(chunks.ids(), std::numeric_limits<ChunkId>::max());
    Running groups(chunks.groups(), limits.groups);
    for (int i = 0; i < count; ++i) {
        const auto id = ids.at(i);
        const auto group = groups.at(i);
        if (!id || !group || (i > 0 && chunks.ids(i) <= 0)) {
            return impossible(kind, fmt::format("its {}. chunk has no valid number or group", i + 1));
        }
        ServedChunk chunk;
        chunk.id = static_cast<ChunkId>(*id);
        chunk.group = static_cast<GroupId>(*group);
        SLUICE_ASSIGN_OR_RETURN(chunk.path, read_path(kind, chunks.paths(i)));
        for (std::uint64_t p = 0; p < chunks.pieces(i); ++p) {
            const auto box = boxes.read(previous);
            if (!box) {
                return impossible(kind, fmt::format("piece {} of chunk {} is cut short", p, chunk.id));
            }
            SLUICE_RETURN_IF_ERROR(check_piece(kind, static_cast<std::size_t>(chunk.id), *box, chunk.group, &own));
            if (box->parameter != 0 || box->copy.dst_offset != 0 ||
                !add_wire_bytes(*box, limits.chunk_bytes, chunk.wire_bytes)) {
                return impossible(kind, fmt::format("chunk {} carries more than {} bytes, or an empty piece", chunk.id,
                                                    limits.chunk_bytes));
            }
            Piece piece = piece_of(*box);
            piece.copy = packed_from_source(piece.copy, 0);
            chunk.pieces.push_back(std::move(piece));
        }
        if (chunk.pieces.empty()) {
            return impossible(kind, fmt::format("chunk {} is empty", chunk.id));
        }
        out.chunks.push_back(std::move(chunk));
    }
    if (!boxes.done()) {
        return impossible(kind, "it has more numbers than pieces");
    }
    return out;
}

}  // namespace

std::string encode_demand(const Demand& demand) {
    wire::Demand message;
    write_demand(demand, message);
    return seal(PlanMessage::kDemand, message);
}

Result<Demand> decode_demand(std::string_view bytes, const Catalogue& catalogue) {
    SLUICE_ASSIGN_OR_RETURN(const wire::Demand message, parse<wire::Demand>(PlanMessage::kDemand, bytes));
    return read_demand(PlanMessage::kDemand, message, catalogue);
}

std::string encode_ownership(const Ownership& ownership) {
    wire::Ownership message;
    message.set_stage(static_cast<std::uint32_t>(ownership.stage));
    add_all(message.mutable_segment_bytes(), ownership.segment_bytes);
    add_all(message.mutable_gathered_bytes(), ownership.gathered_bytes);
    message.set_regions(ownership.regions.size());
    NumberStream& numbers = *message.mutable_numbers();
    TensorId tensor = 0;
    std::int64_t offset = 0;
    for (const OwnedRegion& region : ownership.regions) {
        numbers.Add(region.tensor - tensor);
        numbers.Add(region.segment);
        numbers.Add(region.offset - offset);
        tensor = region.tensor;
        offset = region.offset;
        for (std::size_t d = 0; d < region.begin.size(); ++d) {
            numbers.Add(region.begin[d]);
            numbers.Add(region.end[d] - region.begin[d]);
            numbers.Add(region.strides[d]);
        }
    }
    std::int64_t folded = 0;
    for (std::size_t i = 0; i < ownership.regions.size(); ++i) {
        if (const AxisFold& fold = ownership.regions[i].fold; fold.axis >= 0) {
            for (const std::int64_t number :
                 {static_cast<std::int64_t>(i) - folded, std::int64_t{fold.axis}, fold.period, fold.stride}) {
                message.add_folds(number);
            }
            folded = static_cast<std::int64_t>(i);
        }
    }
    return seal(PlanMessage::kOwnership, message);
}

namespace {

// The fold of each region, or nothing when they do not fit their regions in number.
std::optional<std::map<std::uint64_t, AxisFold>> read_folds(const NumberStream& numbers, std::uint64_t regions) {
    std::map<std::uint64_t, AxisFold> out;
    std::int64_t region = 0;
    for (int i = 0; i + 4 <= numbers.size(); i += 4) {
        const auto at = checked_add(region, numbers.Get(i));
        const std::int64_t axis = numbers.Get(i + 1);
        if (!at || *at < 0 || static_cast<std::uint64_t>(*at) >= regions || (i > 0 && *at <= region) || axis < 0 ||
            axis > std::numeric_limits<int>::max()) {
            return std::nullopt;
        }
        region = *at;
        out[static_cast<std::uint64_t>(region)] = {static_cast<int>(axis), numbers.Get(i + 2), numbers.Get(i + 3)};
    }
    return numbers.size() % 4 == 0 ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace

Result<Ownership> decode_ownership(std::string_view bytes, const Catalogue& catalogue) {
    constexpr PlanMessage kKind = PlanMessage::kOwnership;
    SLUICE_ASSIGN_OR_RETURN(const wire::Ownership message, parse<wire::Ownership>(kKind, bytes));
    Ownership out;
    if (message.stage() > static_cast<std::uint32_t>(std::numeric_limits<int>::max())) {
        return impossible(kKind, fmt::format("stage {} is none", message.stage()));
    }
    out.stage = static_cast<int>(message.stage());
    SLUICE_ASSIGN_OR_RETURN(out.segment_bytes, read_sizes(kKind, message.segment_bytes()));
    SLUICE_ASSIGN_OR_RETURN(out.gathered_bytes, read_sizes(kKind, message.gathered_bytes()));
    if (!out.gathered_bytes.empty() && out.gathered_bytes.size() != static_cast<std::size_t>(catalogue.groups())) {
        return impossible(
            kKind, fmt::format("{} gather buffers for {} groups", out.gathered_bytes.size(), catalogue.groups()));
    }
    const auto folds = read_folds(message.folds(), message.regions());
    if (!folds) {
        return impossible(kKind, "its folds do not fit its regions");
    }
    const NumberStream& numbers = message.numbers();
    int next = 0;
    std::int64_t tensor = 0;
    std::int64_t offset = 0;
    for (std::uint64_t i = 0; i < message.regions(); ++i) {
        const auto wrong = [&](const char* what) { return impossible(kKind, fmt::format("region {}: {}", i, what)); };
        if (numbers.size() - next < 3) {
            return wrong("cut short");
        }
        const auto id = checked_add(tensor, numbers.Get(next));
        const std::int64_t segment = numbers.Get(next + 1);
        const auto at = checked_add(offset, numbers.Get(next + 2));
        next += 3;
        if (!id || *id < 0 || static_cast<std::uint64_t>(*id) >= catalogue.size() || !at ||
            segment < kGatheredSegment || segment >= static_cast<std::int64_t>(out.segment_bytes.size())) {
            return wrong("names a tensor or segment that is none");
        }
        tensor = *id;
        offset = *at;
        const CatalogueTensor& full = catalogue[static_cast<TensorId>(tensor)];
        OwnedRegion region;
        region.tensor = static_cast<TensorId>(tensor);
        region.segment = static_cast<SegmentId>(segment);
        region.offset = offset;
        if (numbers.size() - next < static_cast<int>(3 * full.shape.size())) {
            return wrong("cut short");
        }
        for (std::size_t d = 0; d < full.shape.size(); ++d, next += 3) {
            const std::int64_t begin = numbers.Get(next);
            const std::int64_t size = numbers.Get(next + 1);
            if (begin < 0 || size < 0 || begin > full.shape[d] || size > full.shape[d] - begin) {
                return wrong("lies outside its tensor");
            }
            region.begin.push_back(begin);
            region.end.push_back(begin + size);
            region.strides.push_back(numbers.Get(next + 2));
        }
        if (const auto fold = folds->find(i); fold != folds->end()) {
            region.fold = fold->second;
        }
        if (!valid_fold(region)) {
            return wrong("folds an axis that cannot be folded so");
        }
        const StridedCopy place = region_copy(region, full.shape, size_of(full.dtype));
        const auto extent = side_extent(place.dst_offset, place.item, place.sizes, place.dst_strides);
        std::int64_t room = 0;
        if (segment >= 0) {
            room = out.segment_bytes[static_cast<std::size_t>(segment)];
        } else if (!out.gathered_bytes.empty()) {
            room = out.gathered_bytes[static_cast<std::size_t>(full.group)];
        }
        if (!extent || *extent > room) {
            return wrong("leaves its segment");
        }
        out.regions.push_back(std::move(region));
    }
    if (next != numbers.size()) {
        return impossible(kKind, "it has more numbers than regions");
    }
    return out;
}

std::string encode_route(const Route& route) {
    wire::Route message;
    write_route(route, message);
    return seal(PlanMessage::kRoute, message);
}

Result<Route> decode_route(std::string_view bytes, const PlanLimits& limits, std::span<const Parameter> parameters,
                           std::span<const Ownership> owners) {
    constexpr PlanMessage kKind = PlanMessage::kRoute;
    if (!owners.empty() && owners.size() != static_cast<std::size_t>(limits.trainers)) {
        return internal_error(fmt::format("{} ownerships for {} trainers", owners.size(), limits.trainers));
    }
    SLUICE_ASSIGN_OR_RETURN(const wire::Route message, parse<wire::Route>(kKind, bytes));
    return read_route(kKind, message, limits, parameters, owners);
}

std::string encode_owner_route(const OwnerRoute& route) {
    wire::OwnerRoute message;
    for (const ServedDemand& demand : route.demands) {
        write_served(demand, *message.add_demands());
    }
    add_all(message.mutable_group_order(), route.group_order);
    return seal(PlanMessage::kOwnerRoute, message);
}

Result<OwnerRoute> decode_owner_route(std::string_view bytes, const PlanLimits& limits, const Ownership& own) {
    constexpr PlanMessage kKind = PlanMessage::kOwnerRoute;
    SLUICE_ASSIGN_OR_RETURN(const wire::OwnerRoute message, parse<wire::OwnerRoute>(kKind, bytes));
    OwnerRoute out;
    SLUICE_ASSIGN_OR_RETURN(out.group_order, read_group_order(kKind, message.group_order(), limits.groups));
    for (const wire::ServedDemand& demand : message.demands()) {
        SLUICE_ASSIGN_OR_RETURN(ServedDemand served, read_served(kKind, demand, limits, own));
        out.demands.push_back(std::move(served));
    }
    return out;
}

std::string encode_plan_file(const PlanFile& file) {
    wire::PlanFile message;
    message.set_model(file.model);
    message.set_trainer_layout(file.trainer_layout);
    for (const std::string& layout : file.worker_layouts) {
        message.add_worker_layouts(layout);
    }
    message.set_catalogue_digest(file.catalogue_digest);
    message.set_trainers(static_cast<std::uint32_t>(file.limits.trainers));
    message.set_workers(static_cast<std::uint32_t>(file.limits.workers));
    message.set_groups(static_cast<std::uint32_t>(file.limits.groups));
    message.set_chunk_bytes(static_cast<std::uint64_t>(file.limits.chunk_bytes));
    for (const Demand& demand : file.demands) {
        write_demand(demand, *message.add_demands());
    }
    for (const Route& route : file.plan.routes) {
        write_route(route, *message.add_routes());
    }
    add_all(message.mutable_group_order(), file.plan.group_order);
    message.set_fingerprint(file.plan.fingerprint);
    if (file.catalogue.size() > 0) {
        write_parameters(file.catalogue.tensors(), *message.mutable_catalogue());
    }
    return seal(PlanMessage::kPlanFile, message);
}

namespace {

Result<Catalogue> read_catalogue(PlanMessage kind, const wire::PlanFile& in) {
    std::vector<Parameter> tensors;
    SLUICE_RETURN_IF_ERROR(read_parameters(kind, in.catalogue(), tensors));
    constexpr std::uint32_t kMostGroups = 1 << 20;
    if (in.groups() < 2 || in.groups() > kMostGroups) {
        return impossible(kind, fmt::format("its catalogue has {} groups", in.groups()));
    }
    std::vector<CatalogueTensor> list;
    for (Parameter& tensor : tensors) {
        list.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape), 0, {}});
    }
    auto catalogue = Catalogue::create(std::move(list), static_cast<int>(in.groups()) - 2);
    if (!catalogue.ok()) {
        return impossible(kind, catalogue.status().message());
    }
    if (catalogue->digest() != in.catalogue_digest()) {
        return impossible(kind, "it does not hold the catalogue that it names");
    }
    return catalogue;
}

// All but the catalogue itself.
Result<PlanFile> read_plan_file(PlanMessage kind, const wire::PlanFile& message, const Catalogue& catalogue) {
    constexpr std::uint32_t kMostRanks = 1 << 20;
    PlanFile out;
    out.model = message.model();
    out.trainer_layout = message.trainer_layout();
    out.worker_layouts.assign(message.worker_layouts().begin(), message.worker_layouts().end());
    out.catalogue_digest = message.catalogue_digest();
    if (message.trainers() > kMostRanks || message.workers() > kMostRanks ||
        message.groups() != static_cast<std::uint32_t>(catalogue.groups()) ||
        message.chunk_bytes() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
        message.demands_size() != message.routes_size()) {
        return impossible(kind, "its counts of ranks, groups, demands and routes do not fit together");
    }
    out.limits = {static_cast<int>(message.trainers()), static_cast<int>(message.workers()),
                  static_cast<int>(message.groups()), static_cast<std::int64_t>(message.chunk_bytes())};
    for (int i = 0; i < message.demands_size(); ++i) {
        SLUICE_ASSIGN_OR_RETURN(Demand demand, read_demand(kind, message.demands(i), catalogue));
        SLUICE_ASSIGN_OR_RETURN(Route route, read_route(kind, message.routes(i), out.limits, demand.parameters, {}));
        out.demands.push_back(std::move(demand));
        out.plan.routes.push_back(std::move(route));
    }
    SLUICE_ASSIGN_OR_RETURN(out.plan.group_order, read_group_order(kind, message.group_order(), out.limits.groups));
    out.plan.fingerprint = message.fingerprint();
    return out;
}

}  // namespace

Result<PlanFile> decode_plan_file(std::string_view bytes, const Catalogue& catalogue) {
    constexpr PlanMessage kKind = PlanMessage::kPlanFile;
    SLUICE_ASSIGN_OR_RETURN(const wire::PlanFile message, parse<wire::PlanFile>(kKind, bytes));
    if (!one_line(message.model())) {
        return impossible(kKind, "the name of its model has control characters");
    }
    if (message.catalogue_digest() != catalogue.digest()) {
        return invalid_argument(fmt::format(
            "plan file of model '{}' with catalogue {:016x} does not fit this catalogue {:016x}; plan again",
            message.model(), message.catalogue_digest(), catalogue.digest()));
    }
    SLUICE_ASSIGN_OR_RETURN(PlanFile out, read_plan_file(kKind, message, catalogue));
    if (message.has_catalogue()) {
        SLUICE_ASSIGN_OR_RETURN(out.catalogue, read_catalogue(kKind, message));
    }
    return out;
}

Result<PlanFile> decode_plan_file(std::string_view bytes) {
    constexpr PlanMessage kKind = PlanMessage::kPlanFile;
    SLUICE_ASSIGN_OR_RETURN(const wire::PlanFile message, parse<wire::PlanFile>(kKind, bytes));
    SLUICE_ASSIGN_OR_RETURN(Catalogue catalogue, read_catalogue(kKind, message));
    SLUICE_ASSIGN_OR_RETURN(PlanFile out, read_plan_file(kKind, message, catalogue));
    out.catalogue = std::move(catalogue);
    return out;
}

}  // namespace sluice

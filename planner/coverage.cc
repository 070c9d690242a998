#include "planner/coverage.h"

#include "planner/box_union.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

namespace sluice {
namespace {

ByteBox written_box(const StridedCopy& copy, std::int64_t item) {
    return make_byte_box(copy.dst_offset, item, copy.sizes, copy.dst_strides);
}

bool within(const ByteBox& box, std::int64_t length) {
    std::int64_t end = box.offset + box.run;
    for (const ByteBox::Line& line : box.lines) {
        end += (line.size - 1) * line.stride;
    }
    return box.run == 0 || (box.offset >= 0 && end <= length);
}

Dims coordinates(const Dims& shape, std::int64_t element) {
    Dims out(shape.size(), 0);
    for (std::size_t d = shape.size(); d-- > 0;) {
        out[d] = element % shape[d];
        element /= shape[d];
    }
    return out;
}

// Bytes to elements; a part of an element counts as one.
std::int64_t elements(std::int64_t bytes, DType dtype) { return (bytes + size_of(dtype) - 1) / size_of(dtype); }

// Values by key, as one array per key without an allocation each.
template <class Value>
std::vector<std::vector<Value>> by_key(std::size_t keys) {
    return std::vector<std::vector<Value>>(keys);
}

}  // namespace

DemandCoverage prove_coverage(const Demand& demand) {
    DemandCoverage out;
    const auto fail = [&](const Parameter& parameter, std::string_view fault) {
        if (out.status.ok()) {
            out.status =
                plan_refused(fmt::format("parameter {} {}: {}", parameter.name, to_string(parameter.shape), fault));
        }
    };

    auto boxes = by_key<ByteBox>(demand.parameters.size());
    const auto add = [&](ParameterId id, ByteBox box) {
        const Parameter& parameter = demand.parameters[static_cast<std::size_t>(id)];
        if (!within(box, parameter.bytes())) {
            fail(parameter, fmt::format("a box at byte {} leaves its {} bytes", box.offset, parameter.bytes()));
            return;
        }
        boxes[static_cast<std::size_t>(id)].push_back(std::move(box));
    };
    for (const CopyRecord& record : demand.records) {
        add(record.parameter, written_box(record.copy, size_of(record.parameter_dtype)));
    }
    for (const ZeroFill& fill : demand.fills) {
        add(fill.parameter, written_box(fill.box, fill.box.item));
        out.padding_bytes += fill.box.bytes();
    }
    std::vector<bool> from_trainer(demand.parameters.size(), true);
    for (const ParameterId id : demand.not_from_trainer) {
        from_trainer[static_cast<std::size_t>(id)] = false;
    }

    for (std::size_t id = 0; id < demand.parameters.size(); ++id) {
        const Parameter& parameter = demand.parameters[id];
        if (!from_trainer[id]) {
            if (!boxes[id].empty()) {
                fail(parameter, "it is declared not to come from the trainer, but the loader writes it");
            }
            continue;
        }
        const std::int64_t bytes = parameter.bytes();
        const BoxUnion covered = unite(std::move(boxes[id]), bytes);
        const auto note = [&](std::vector<CoverageGap>& gaps, std::int64_t count, std::int64_t first,
                              std::int64_t& total, std::string_view what) {
            const std::int64_t number = elements(count, parameter.dtype);
            gaps.push_back({static_cast<std::int32_t>(id), number,
                            coordinates(parameter.shape, first / size_of(parameter.dtype))});
            total += number;
            fail(parameter,
                 fmt::format("{} elements are {}, the first at {}", number, what, to_string(gaps.back().first)));
        };
        if (covered.first_hole >= 0) {
            note(out.hole_gaps, bytes - covered.covered, covered.first_hole, out.holes, "written by no tensor");
        }
        if (covered.first_overlap >= 0) {
            note(out.overlap_gaps, covered.overlapped, covered.first_overlap, out.overlaps, "written more than once");
        }
    }
    return out;
}

SourceCoverage source_coverage(const Catalogue& catalogue, std::span<const Demand* const> demands) {
    auto boxes = by_key<ByteBox>(catalogue.size());
    for (const Demand* demand : demands) {
        for (const CopyRecord& record : demand->records) {
            boxes[static_cast<std::size_t>(record.tensor)].push_back(
                make_byte_box(record.copy.src_offset, record.copy.item, record.copy.sizes, record.copy.src_strides));
        }
    }
    SourceCoverage out;
    for (std::size_t id = 0; id < catalogue.size(); ++id) {
        const CatalogueTensor& tensor = catalogue[static_cast<TensorId>(id)];
        const std::int64_t bytes = tensor.bytes();
        if (bytes == 0) {
            continue;
        }
        const BoxUnion read = unite(std::move(boxes[id]), bytes);
        if (read.covered == 0) {
            out.unread.push_back(static_cast<TensorId>(id));
        } else if (read.first_hole >= 0) {
            out.partly_read.push_back({static_cast<std::int32_t>(id), elements(bytes - read.covered, tensor.dtype),
                                       coordinates(tensor.shape, read.first_hole / size_of(tensor.dtype))});
        }
    }
    return out;
}

}  // namespace sluice

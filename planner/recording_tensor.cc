#include "planner/recording_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <type_traits>

namespace sluice {

void refuse(std::string message) { throw RecordingRefused(plan_refused(std::move(message))); }

namespace {

std::string operation_text(const char* name, std::span<const std::int64_t> arguments, bool more = false) {
    std::string out = name;
    out += '(';
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        out += fmt::format("{}{}", i == 0 ? "" : ", ", arguments[i]);
    }
    out += more ? ", ...)" : ")";
    return out;
}

std::span<const std::int64_t> list(std::initializer_list<std::int64_t> values) {
    return {values.begin(), values.size()};
}

}  // namespace

void OperationChain::add(const char* operation, std::span<const std::int64_t> arguments) {
    if (count_ >= kKept) {
        std::move(operations_.begin() + 1, operations_.end(), operations_.begin());
    }
    Operation& added = operations_[std::min<std::size_t>(count_, kKept - 1)];
    added.name = operation;
    added.arguments = static_cast<std::uint32_t>(arguments.size());
    std::copy_n(arguments.begin(), std::min(arguments.size(), kArguments), added.values.begin());
    ++count_;
}

std::string OperationChain::text() const {
    std::string out = count_ > kKept ? "..." : "";
    for (std::size_t i = 0; i < std::min<std::size_t>(count_, kKept); ++i) {
        const Operation& operation = operations_[i];
        const std::size_t shown = std::min<std::size_t>(operation.arguments, kArguments);
        out +=
            fmt::format("{}{}", out.empty() ? "" : ".",
                        operation_text(operation.name, {operation.values.data(), shown}, shown < operation.arguments));
    }
    return out;
}

template <class Self>
const std::string& ViewOperations<Self>::name() const {
    if constexpr (std::is_same_v<Self, RecordingTensor>) {
        return recorder_->catalogue()[root_].name;
    } else {
        return recorder_->demand().parameters[static_cast<std::size_t>(root_)].name;
    }
}

template <class Self>
std::string ViewOperations<Self>::description() const {
    const auto describe = [this](const char* kind, const auto& root) {
        const std::string chain = chain_.text();
        return fmt::format("{} {} {} {}{}{}", kind, root.name, to_string(root.shape), to_string(root.dtype),
                           chain.empty() ? "" : ": ", chain);
    };
    if constexpr (std::is_same_v<Self, RecordingTensor>) {
        return describe("tensor", recorder_->catalogue()[root_]);
    } else {
        return describe("parameter", recorder_->demand().parameters[static_cast<std::size_t>(root_)]);
    }
}

template <class Self>
void ViewOperations<Self>::refuse_operation(const char* name, std::span<const std::int64_t> arguments,
                                            const std::string& reason) const {
    refuse(fmt::format("{}: {} refused: {}", description(), operation_text(name, arguments), reason));
}

template <class Self>
template <class Operation>
Self ViewOperations<Self>::derive(const char* name, std::span<const std::int64_t> arguments,
                                  Operation&& operation) const {
    Self out = static_cast<const Self&>(*this);
    try {
        operation(out.view_);
    } catch (const ViewError& error) {
        refuse_operation(name, arguments, error.reason);
    }
    if constexpr (std::is_same_v<Self, RecordingParameter>) {
        if (out.view_.is_copy()) {
            refuse_operation(name, arguments, "it would copy, and what is written to the copy would be lost");
        }
    }
    out.chain_.add(name, arguments);
    return out;
}

template <class Self>
std::int64_t ViewOperations<Self>::size(std::int64_t dim) const {
    try {
        return view_.sizes()[static_cast<std::size_t>(view_.dimension(dim))];
    } catch (const ViewError& error) {
        refuse_operation("size", list({dim}), error.reason);
    }
}

template <class Self>
Self ViewOperations<Self>::narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const {
    return derive("narrow", list({dim, start, length}), [&](AffineView& v) { v.narrow(dim, start, length); });
}

template <class Self>
Self ViewOperations<Self>::slice(std::int64_t dim, std::int64_t start, std::int64_t stop, std::int64_t step) const {
    return derive("slice", list({dim, start, stop, step}), [&](AffineView& v) { v.slice(dim, start, stop, step); });
}

template <class Self>
Self ViewOperations<Self>::select(std::int64_t dim, std::int64_t index) const {
    return derive("select", list({dim, index}), [&](AffineView& v) { v.select(dim, index); });
}

template <class Self>
template <class Lengths>
std::vector<Self> ViewOperations<Self>::cut(const char* name, std::int64_t argument, std::int64_t dim,
                                            Lengths&& lengths_of) const {
    std::vector<std::int64_t> lengths;
    try {
        lengths = lengths_of(view_);
    } catch (const ViewError& error) {
        refuse_operation(name, list({argument, dim}), error.reason);
    }
    std::vector<Self> out;
    out.reserve(lengths.size());
    std::int64_t start = 0;
    for (const std::int64_t length : lengths) {
        out.push_back(narrow(dim, start, length));
        start += length;
    }
    return out;
}

template <class Self>
std::vector<Self> ViewOperations<Self>::chunk(std::int64_t chunks, std::int64_t dim) const {
    return cut("chunk", chunks, dim, [&](const AffineView& v) { return v.chunk_sizes(chunks, dim); });
}

template <class Self>
std::vector<Self> ViewOperations<Self>::split(std::int64_t split_size, std::int64_t dim) const {
    return cut("split", split_size, dim, [&](const AffineView& v) { return v.split_sizes(split_size, dim); });
}

template <class Self>
std::vector<Self> ViewOperations<Self>::split(std::span<const std::int64_t> part_sizes, std::int64_t dim) const {
    return cut("split", static_cast<std::int64_t>(part_sizes.size()), dim,
               [&](const AffineView& v) { return v.split_sizes(part_sizes, dim); });
}

template <class Self>
std::vector<Self> ViewOperations<Self>::unbind(std::int64_t dim) const {
    const std::int64_t count = size(dim);
    std::vector<Self> out;
    out.reserve(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
        out.push_back(select(dim, i));
    }
    return out;
}

template <class Self>
Self ViewOperations<Self>::view(const Dims& shape) const {
    return derive("view", shape, [&](AffineView& v) { v.view(shape); });
}

template <class Self>
Self ViewOperations<Self>::reshape(const Dims& shape) const {
    return derive("reshape", shape, [&](AffineView& v) { v.reshape(shape); });
}

template <class Self>
Self ViewOperations<Self>::flatten(std::int64_t start_dim, std::int64_t end_dim) const {
    return derive("flatten", list({start_dim, end_dim}), [&](AffineView& v) { v.flatten(start_dim, end_dim); });
}

template <class Self>
Self ViewOperations<Self>::unflatten(std::int64_t dim, const Dims& sizes) const {
    Dims arguments{dim};
    arguments.insert(arguments.end(), sizes.begin(), sizes.end());
    return derive("unflatten", arguments, [&](AffineView& v) { v.unflatten(dim, sizes); });
}

template <class Self>
Self ViewOperations<Self>::unsqueeze(std::int64_t dim) const {
    return derive("unsqueeze", list({dim}), [&](AffineView& v) { v.unsqueeze(dim); });
}

template <class Self>
Self ViewOperations<Self>::squeeze() const {
    return derive("squeeze", {}, [](AffineView& v) { v.squeeze(); });
}

template <class Self>
Self ViewOperations<Self>::squeeze(std::int64_t dim) const {
    return derive("squeeze", list({dim}), [&](AffineView& v) { v.squeeze(dim); });
}

template <class Self>
Self ViewOperations<Self>::transpose(std::int64_t dim0, std::int64_t dim1) const {
    return derive("transpose", list({dim0, dim1}), [&](AffineView& v) { v.transpose(dim0, dim1); });
}

template <class Self>
Self ViewOperations<Self>::t() const {
    return derive("t", {}, [](AffineView& v) { v.t(); });
}

template <class Self>
Self ViewOperations<Self>::permute(const Dims& dims) const {
    return derive("permute", dims, [&](AffineView& v) { v.permute(dims); });
}

template <class Self>
Self ViewOperations<Self>::movedim(const Dims& source, const Dims& destination) const {
    Dims arguments = source;
    arguments.insert(arguments.end(), destination.begin(), destination.end());
    return derive("movedim", arguments, [&](AffineView& v) { v.movedim(source, destination); });
}

template <class Self>
Self ViewOperations<Self>::expand(const Dims& sizes) const {
    return derive("expand", sizes, [&](AffineView& v) { v.expand(sizes); });
}

template <class Self>
Self ViewOperations<Self>::contiguous() const {
    return derive("contiguous", {}, [](AffineView& v) { v.contiguous(); });
}

template <class Self>
Self ViewOperations<Self>::view(DType dtype) const {
    return derive("view_dtype", {}, [&](AffineView& v) { v.view_as(dtype); });
}

template class ViewOperations<RecordingTensor>;
template class ViewOperations<RecordingParameter>;

RecordingTensor RecordingTensor::index_select(std::int64_t dim, std::span<const std::int64_t> indices) const {
    return derive("index_select", list({dim}), [&](AffineView& v) { v.index_select(dim, indices); });
}

RecordingTensor RecordingTensor::clone() const {
    return derive("clone", {}, [](AffineView& v) { v.clone(); });
}

RecordingTensor RecordingTensor::to(DType dtype) const {
    return derive("to", {}, [&](AffineView& v) { v.to(dtype); });
}

void RecordingTensor::needs_data(const char* operation) const {
    refuse(fmt::format("{}: {} refused: it needs data, and a plan is made without", description(), operation));
}

RecordingTensor RecordingTensor::cat(std::span<const RecordingTensor> tensors, std::int64_t dim) {
    if (tensors.empty()) {
        refuse("cat() refused: it needs at least one tensor");
    }
    std::vector<AffineView> views;
    views.reserve(tensors.size());
    for (const RecordingTensor& tensor : tensors) {
        views.push_back(tensor.view_);
    }
    const auto count = static_cast<std::int64_t>(tensors.size());
    return tensors.front().derive("cat", list({count, dim}), [&](AffineView& v) { v = AffineView::cat(views, dim); });
}

RecordingTensor RecordingTensor::stack(std::span<const RecordingTensor> tensors, std::int64_t dim) {
    std::vector<RecordingTensor> unsqueezed;
    unsqueezed.reserve(tensors.size());
    for (const RecordingTensor& tensor : tensors) {
        unsqueezed.push_back(tensor.unsqueeze(dim));
        if (tensor.sizes() != tensors.front().sizes()) {
            tensor.refuse_operation(
                "stack", list({dim}),
                fmt::format("shapes {} and {} differ", to_string(tensors.front().sizes()), to_string(tensor.sizes())));
        }
    }
    return cat(unsqueezed, dim);
}

void RecordingParameter::check_destination(const char* operation) const {
    for (std::size_t d = 0; d < sizes().size(); ++d) {
        if (sizes()[d] > 1 && strides()[d] == 0) {
            refuse_operation(operation, {}, "the destination is expanded: several elements share one place");
        }
    }
}

void RecordingParameter::copy_(const RecordingTensor& source) const {
    const auto refuse_copy = [&](const std::string& reason) {
        refuse(fmt::format("{}: copy_ into {} refused: {}", source.description(), description(), reason));
    };
    if (source.sizes() != sizes()) {
        refuse_copy(fmt::format("shape {} differs from the destination's {}; declare a broadcast with expand",
                                to_string(source.sizes()), to_string(sizes())));
    }
    if (source.dtype() != dtype()) {
        refuse_copy(fmt::format("dtype {} differs from the destination's {}; declare the conversion with to",
                                to_string(source.dtype()), to_string(dtype())));
    }
    check_destination("copy_");
    if (numel() == 0) {
        return;
    }
    const std::int64_t unit = size_of(dtype());
    for (const AffineView::Piece& piece : source.affine().pieces()) {
        CopyRecord& record = sink_->demand_.records.emplace_back();
        record.tensor = piece.tensor;
        record.parameter = root_;
        record.source_dtype = piece.dtype;
        record.parameter_dtype = dtype();
        StridedCopy& copy = record.copy;
        copy.item = size_of(piece.dtype);
        copy.src_offset = piece.offset;
        copy.dst_offset = view_.storage_offset() * unit;
        for (std::size_t d = 0; d < sizes().size(); ++d) {
            copy.dst_offset += piece.begin[d] * strides()[d] * unit;
        }
        for (const AffineView::Fine& f : piece.fine) {
            copy.sizes.push_back(f.size);
            copy.src_strides.push_back(f.stride);
            copy.dst_strides.push_back(f.step * strides()[static_cast<std::size_t>(f.dim)] * unit);
        }
    }
}

void RecordingParameter::zero_() const {
    check_destination("zero_");
    if (numel() == 0) {
        return;
    }
    const std::int64_t unit = size_of(dtype());
    ZeroFill& fill = sink_->demand_.fills.emplace_back();
    fill.parameter = root_;
    fill.box.item = unit;
    fill.box.dst_offset = view_.storage_offset() * unit;
    for (std::size_t d = 0; d < sizes().size(); ++d) {
        fill.box.sizes.push_back(sizes()[d]);
        fill.box.src_strides.push_back(0);
        fill.box.dst_strides.push_back(strides()[d] * unit);
    }
}

RecordingTensor Recorder::tensor(TensorId id) const {
    const CatalogueTensor& tensor = (*catalogue_)[id];
    return RecordingTensor(this, id, AffineView(id, tensor.dtype, tensor.shape));
}

RecordingTensor Recorder::tensor(std::string_view name) const {
    const std::optional<TensorId> id = catalogue_->find(name);
    if (!id) {
        refuse(fmt::format("checkpoint tensor {} is missing: the loader needs it, but the catalogue does not list it",
                           name));
    }
    return tensor(*id);
}

ParameterId Recorder::declare(std::string name, DType dtype, const Dims& shape) {
    const auto elements = checked_num_elements(shape);
    if (!elements || !checked_mul(*elements, size_of(dtype))) {
        refuse(fmt::format("parameter {}: shape {} is not possible", name, to_string(shape)));
    }
    if (!names_.insert(name).second) {
        refuse(fmt::format("parameter {} is declared twice", name));
    }
    Parameter& parameter = demand_.parameters.emplace_back();
    parameter.name = std::move(name);
    parameter.dtype = dtype;
    parameter.shape = shape;
    return static_cast<ParameterId>(demand_.parameters.size() - 1);
}

RecordingParameter Recorder::add_parameter(std::string name, DType dtype, const Dims& shape) {
    const ParameterId id = declare(std::move(name), dtype, shape);
    return RecordingParameter(this, id, AffineView(0, dtype, shape));
}

void Recorder::add_buffer(std::string name, DType dtype, const Dims& shape) {
    demand_.not_from_trainer.push_back(declare(std::move(name), dtype, shape));
}

}  // namespace sluice

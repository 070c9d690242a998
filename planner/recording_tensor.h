#pragma once

#include "planner/affine_view.h"
#include "planner/catalogue.h"
#include "planner/demand.h"
#include "runtime/base/status.h"

#include <array>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

/// Tensors without data, on which a worker's loader runs once. They have PyTorch's names and semantics; what a loader
/// copies into its parameters becomes copy records, and whatever records also transfers. What cannot be transferred (an
/// impossible view, an undeclared difference of dtype or shape, an operation that needs data) is refused where it is
/// recorded.
namespace sluice {

/// Thrown out of a loader at the refused operation, so that loaders need no error handling; dry_run turns it into its
/// Status. The message is one line: tensor, chain of operations, refused operation, reason.
class RecordingRefused : public std::exception {
public:
    explicit RecordingRefused(Status status) : status_(std::move(status)) {}
    [[nodiscard]] const Status& status() const { return status_; }
    [[nodiscard]] const char* what() const noexcept override { return status_.message().c_str(); }

private:
    Status status_;
};

/// Throws RecordingRefused with a plan_refused Status.
[[noreturn]] void refuse(std::string message);

class Recorder;
class RecordingTensor;

/// The last operations that led to a value, for messages only.
class OperationChain {
public:
    void add(const char* operation, std::span<const std::int64_t> arguments);
    [[nodiscard]] std::string text() const;

private:
    static constexpr std::size_t kKept = 6;
    static constexpr std::size_t kArguments = 4;
    struct Operation {
        const char* name;
        std::uint32_t arguments;
        std::array<std::int64_t, kArguments> values;
    };
    std::array<Operation, kKept> operations_;
    std::uint32_t count_ = 0;
};

/// What checkpoint tensors and parameters have in common: every view operation of PyTorch, each giving a new value.
/// Dimensions and indices may be negative. Cheap to copy; no heap memory for views of one tensor up to six dimensions.
template <class Self>
class ViewOperations {
public:
    [[nodiscard]] const Dims& sizes() const { return view_.sizes(); }
    [[nodiscard]] std::int64_t size(std::int64_t dim) const;
    [[nodiscard]] const Dims& strides() const { return view_.strides(); }
    [[nodiscard]] std::int64_t dim() const { return view_.dim(); }
    [[nodiscard]] std::int64_t numel() const { return view_.numel(); }
    [[nodiscard]] DType dtype() const { return view_.dtype(); }
    [[nodiscard]] bool is_contiguous() const { return view_.is_contiguous(); }
    /// Name of the checkpoint tensor or parameter (of the first one after cat).
    [[nodiscard]] const std::string& name() const;
    /// "model.norm.weight [64] bf16: narrow(0, 0, 32)".
    [[nodiscard]] std::string description() const;
    [[nodiscard]] const AffineView& affine() const { return view_; }

    [[nodiscard]] Self narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const;
    /// tensor[start:stop:step] along `dim`, with Python's clamping.
    [[nodiscard]] Self slice(std::int64_t dim, std::int64_t start, std::int64_t stop, std::int64_t step = 1) const;
    [[nodiscard]] Self select(std::int64_t dim, std::int64_t index) const;
    [[nodiscard]] Self operator[](std::int64_t index) const { return select(0, index); }
    [[nodiscard]] std::vector<Self> chunk(std::int64_t chunks, std::int64_t dim = 0) const;
    [[nodiscard]] std::vector<Self> split(std::int64_t split_size, std::int64_t dim = 0) const;
    [[nodiscard]] std::vector<Self> split(std::span<const std::int64_t> sizes, std::int64_t dim = 0) const;
    [[nodiscard]] std::vector<Self> split(std::initializer_list<std::int64_t> sizes, std::int64_t dim = 0) const {
        return split(std::span<const std::int64_t>(sizes.begin(), sizes.size()), dim);
    }
    [[nodiscard]] std::vector<Self> unbind(std::int64_t dim = 0) const;
    [[nodiscard]] Self view(const Dims& shape) const;
    [[nodiscard]] Self reshape(const Dims& shape) const;
    [[nodiscard]] Self flatten(std::int64_t start_dim = 0, std::int64_t end_dim = -1) const;
    [[nodiscard]] Self unflatten(std::int64_t dim, const Dims& sizes) const;
    [[nodiscard]] Self unsqueeze(std::int64_t dim) const;
    [[nodiscard]] Self squeeze() const;
    [[nodiscard]] Self squeeze(std::int64_t dim) const;
    [[nodiscard]] Self transpose(std::int64_t dim0, std::int64_t dim1) const;
    [[nodiscard]] Self t() const;
    [[nodiscard]] Self permute(const Dims& dims) const;
    [[nodiscard]] Self movedim(const Dims& source, const Dims& destination) const;
    [[nodiscard]] Self movedim(std::int64_t source, std::int64_t destination) const {
        return movedim(Dims{source}, Dims{destination});
    }
    [[nodiscard]] Self expand(const Dims& sizes) const;
    [[nodiscard]] Self contiguous() const;
    /// The same bytes as another dtype, of equal or different size.
    [[nodiscard]] Self view(DType dtype) const;

protected:
    ViewOperations(const Recorder* recorder, std::int32_t root, AffineView view)
        : recorder_(recorder), root_(root), view_(std::move(view)) {}

    template <class Operation>
    [[nodiscard]] Self derive(const char* name, std::span<const std::int64_t> arguments, Operation&& operation) const;
    template <class Lengths>
    [[nodiscard]] std::vector<Self> cut(const char* name, std::int64_t argument, std::int64_t dim,
                                        Lengths&& lengths_of) const;
    [[noreturn]] void refuse_operation(const char* name, std::span<const std::int64_t> arguments,
                                       const std::string& reason) const;

    const Recorder* recorder_;
    std::int32_t root_;
    AffineView view_;
    OperationChain chain_;
};

/// A checkpoint tensor, or a view of one. Belongs to a Recorder, which must outlive it; one thread.
class RecordingTensor : public ViewOperations<RecordingTensor> {
public:
    /// Elements at a constant list of indices, as index_select and as tensor[[...]] do.
    [[nodiscard]] RecordingTensor index_select(std::int64_t dim, std::span<const std::int64_t> indices) const;
    [[nodiscard]] RecordingTensor index_select(std::int64_t dim, std::initializer_list<std::int64_t> indices) const {
        return index_select(dim, std::span<const std::int64_t>(indices.begin(), indices.size()));
    }
    [[nodiscard]] RecordingTensor clone() const;
    /// An explicit, declared conversion (round to nearest even) among f64, f32, f16 and bf16. At most one per value.
    [[nodiscard]] RecordingTensor to(DType dtype) const;

    [[nodiscard]] static RecordingTensor cat(std::span<const RecordingTensor> tensors, std::int64_t dim = 0);
    [[nodiscard]] static RecordingTensor cat(std::initializer_list<RecordingTensor> tensors, std::int64_t dim = 0) {
        return cat(std::span<const RecordingTensor>(tensors.begin(), tensors.size()), dim);
    }
    [[nodiscard]] static RecordingTensor stack(std::span<const RecordingTensor> tensors, std::int64_t dim = 0);
    [[nodiscard]] static RecordingTensor stack(std::initializer_list<RecordingTensor> tensors, std::int64_t dim = 0) {
        return stack(std::span<const RecordingTensor>(tensors.begin(), tensors.size()), dim);
    }

    /// Operations that need data always refuse, naming themselves. `needs_data` is for bindings: any further one by
    /// name.
    [[noreturn]] void needs_data(const char* operation) const;
    [[noreturn]] double item() const { needs_data("item()"); }
    [[noreturn]] RecordingTensor masked_select(const RecordingTensor&) const { needs_data("masked_select()"); }
    [[noreturn]] RecordingTensor index(const RecordingTensor&) const { needs_data("index(tensor)"); }
    [[noreturn]] RecordingTensor operator+(double) const { needs_data("add()"); }
    [[noreturn]] RecordingTensor operator-(double) const { needs_data("sub()"); }
    [[noreturn]] RecordingTensor operator*(double) const { needs_data("mul()"); }
    [[noreturn]] RecordingTensor operator/(double) const { needs_data("div()"); }
    [[noreturn]] RecordingTensor operator+(const RecordingTensor&) const { needs_data("add()"); }
    [[noreturn]] RecordingTensor operator-(const RecordingTensor&) const { needs_data("sub()"); }
    [[noreturn]] RecordingTensor operator*(const RecordingTensor&) const { needs_data("mul()"); }
    [[noreturn]] RecordingTensor operator/(const RecordingTensor&) const { needs_data("div()"); }

private:
    friend class Recorder;
    friend class ViewOperations<RecordingTensor>;
    using ViewOperations::ViewOperations;
};

/// A parameter of the worker, or a view of one. Copying into it is what is recorded. Operations that would copy in
/// PyTorch (a reshape that is no view) are refused: writes would not reach the parameter.
class RecordingParameter : public ViewOperations<RecordingParameter> {
public:
    /// Records the copy of `source` into this view. Shapes and dtypes must be equal: broadcasting is declared by
    /// `expand`, a conversion by `to`. The view must not be expanded.
    void copy_(const RecordingTensor& source) const;
    /// Records that the loader fills this view with zeros itself.
    void zero_() const;

private:
    friend class Recorder;
    friend class ViewOperations<RecordingParameter>;
    RecordingParameter(Recorder* recorder, std::int32_t root, AffineView view)
        : ViewOperations(recorder, root, std::move(view)), sink_(recorder) {}
    void check_destination(const char* operation) const;

    Recorder* sink_;
};

/// Hands out the tensors of a catalogue, declares parameters, and collects the demand. One thread; not movable, since
/// tensors point to it.
class Recorder {
public:
    explicit Recorder(const Catalogue& catalogue) : catalogue_(&catalogue) {}
    Recorder(const Recorder&) = delete;
    Recorder& operator=(const Recorder&) = delete;

    [[nodiscard]] const Catalogue& catalogue() const { return *catalogue_; }
    [[nodiscard]] bool has(std::string_view name) const { return catalogue_->find(name).has_value(); }
    [[nodiscard]] RecordingTensor tensor(TensorId id) const;
    /// Refuses a name that is not in the catalogue.
    [[nodiscard]] RecordingTensor tensor(std::string_view name) const;

    /// Refuses a second parameter of the same name.
    RecordingParameter add_parameter(std::string name, DType dtype, const Dims& shape);
    /// A tensor of the worker that no sync touches (position buffers, expert maps).
    void add_buffer(std::string name, DType dtype, const Dims& shape);

    [[nodiscard]] const Demand& demand() const { return demand_; }
    [[nodiscard]] Demand take_demand() { return std::move(demand_); }

private:
    friend class RecordingParameter;
    ParameterId declare(std::string name, DType dtype, const Dims& shape);

    const Catalogue* catalogue_;
    Demand demand_;
    std::unordered_set<std::string> names_;
};

extern template class ViewOperations<RecordingTensor>;
extern template class ViewOperations<RecordingParameter>;

}  // namespace sluice

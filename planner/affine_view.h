#pragma once

#include "planner/ids.h"
#include "runtime/base/dtype.h"
#include "runtime/base/shape.h"

#include <boost/container/small_vector.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sluice {

/// Why a view operation is impossible. Thrown by AffineView with the reason only; the recording tensor catches it and
/// adds tensor, chain and operation (RecordingRefused).
struct ViewError {
    std::string reason;
};

/// The value behind a recording tensor: what PyTorch's view operations do to a tensor without data, as an affine map
/// and never as a list of operations. Operations change the value in place, have PyTorch's names and semantics
/// (negative dimensions and indices, zero-size and 0-d tensors), and throw ViewError.
///
/// The map is a list of pieces that are disjoint and together make up the whole tensor. A piece is a product of fine
/// dimensions, each of which counts along one dimension of the tensor:
///   for every j within the sizes of `fine`:
///     element at index[d] = begin[d] + sum over fine f with f.dim == d of j_f * f.step
///     lies at source byte    offset   + sum over all fine f             of j_f * f.stride
/// A view of one tensor is one piece with one fine dimension per dimension. A dimension has several fine dimensions
/// after a reshape that PyTorch answers with a copy; several pieces come from cat, from index lists, and from cuts that
/// fall inside a reshaped dimension. Cuts are exact.
class AffineView {
public:
    struct Fine {
        std::int32_t dim = 0;
        std::int64_t size = 0;    ///< >= 2; size-1 fine dimensions are left out.
        std::int64_t step = 0;    ///< In indices of `dim`; > 0.
        std::int64_t stride = 0;  ///< In source bytes; 0 = expanded.
    };
    using FineDims = boost::container::small_vector<Fine, 6>;
    struct Piece {
        TensorId tensor = 0;
        DType dtype = DType::kBF16;  ///< What the source bytes are; differs from the view's dtype after `to`.
        std::int64_t offset = 0;
        Dims begin;
        /// Sorted by dim, then by falling step; within a dim each step exceeds what the later ones add up to.
        FineDims fine;
    };

    /// All of a contiguous tensor.
    AffineView(TensorId tensor, DType dtype, const Dims& sizes);

    [[nodiscard]] const Dims& sizes() const { return sizes_; }
    /// As PyTorch would report them, in elements. They decide what `view` accepts. For a value that is still a view of
    /// its tensor (not is_copy) they and storage_offset say where the elements lie.
    [[nodiscard]] const Dims& strides() const { return strides_; }
    [[nodiscard]] std::int64_t storage_offset() const { return storage_offset_; }
    [[nodiscard]] DType dtype() const { return dtype_; }
    [[nodiscard]] std::int64_t dim() const { return static_cast<std::int64_t>(sizes_.size()); }
    [[nodiscard]] std::int64_t numel() const { return num_elements(sizes_); }
    [[nodiscard]] bool is_contiguous() const;
    /// An operation on the way would have copied the data in PyTorch: writing to the value would not reach the tensor.
    [[nodiscard]] bool is_copy() const { return is_copy_; }
    [[nodiscard]] std::span<const Piece> pieces() const { return {pieces_.data(), pieces_.size()}; }

    void narrow(std::int64_t dim, std::int64_t start, std::int64_t length);
    /// tensor[start:stop:step] along `dim`: start and stop are clamped as in Python, step >= 1.
    void slice(std::int64_t dim, std::int64_t start, std::int64_t stop, std::int64_t step);
    void select(std::int64_t dim, std::int64_t index);
    void index_select(std::int64_t dim, std::span<const std::int64_t> indices);
    void view(const Dims& shape);
    void reshape(const Dims& shape);
    void flatten(std::int64_t start_dim, std::int64_t end_dim);
    void unflatten(std::int64_t dim, const Dims& sizes);
    void unsqueeze(std::int64_t dim);
    void squeeze();
    void squeeze(std::int64_t dim);
    void transpose(std::int64_t dim0, std::int64_t dim1);
    void t();
    void permute(const Dims& dims);
    void movedim(const Dims& source, const Dims& destination);
    void expand(const Dims& sizes);
    void contiguous();
    void clone();
    void view_as(DType dtype);
    void to(DType dtype);

    /// Sizes of the parts that split, chunk and unbind cut dimension `dim` into, after PyTorch's checks.
    [[nodiscard]] std::vector<std::int64_t> split_sizes(std::int64_t split_size, std::int64_t dim) const;
    [[nodiscard]] std::vector<std::int64_t> split_sizes(std::span<const std::int64_t> sizes, std::int64_t dim) const;
    [[nodiscard]] std::vector<std::int64_t> chunk_sizes(std::int64_t chunks, std::int64_t dim) const;
    /// A dimension of a tensor that has some, made non-negative.
    [[nodiscard]] int dimension(std::int64_t dim) const;

    static AffineView cat(std::span<const AffineView> tensors, std::int64_t dim);

private:
    using Pieces = boost::container::small_vector<Piece, 1>;
    friend class LineCutter;

    [[nodiscard]] int dimension_or_scalar(std::int64_t dim) const;
    [[nodiscard]] Dims infer_shape(const Dims& shape) const;
    [[nodiscard]] bool view_strides(const Dims& shape, Dims& strides) const;
    void set_shape(const Dims& shape, const Dims& strides);
    void restrict_to(int dim, std::int64_t start, std::int64_t step, std::int64_t count);
    void drop_dim(int dim);
    void insert_dim(int dim, std::int64_t size, std::int64_t stride);
    void flatten_pieces();
    void unflatten_pieces(int dim, std::int64_t inner);
    void become_copy(Dims strides);
    [[nodiscard]] Dims copied_strides() const;
    [[nodiscard]] std::string shape_text() const;

    Dims sizes_;
    Dims strides_;
    std::int64_t storage_offset_ = 0;
    DType dtype_;
    bool is_copy_ = false;
    Pieces pieces_;
};

}  // namespace sluice

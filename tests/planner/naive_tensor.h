#pragma once

#include "runtime/base/dtype.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

/// PyTorch's view operations on tensors whose every element is written out: the evaluator that the recording tensor is
/// compared with. It shares no code with the recorder. Each operation gives nothing where PyTorch raises an error.
namespace sluice::test {

using Index = std::vector<std::int64_t>;

/// Where an element comes from.
struct Origin {
    int tensor = 0;
    DType source = DType::kU8;  ///< What its bytes are; differs from the tensor's dtype after a conversion.
    std::int64_t byte = 0;

    friend bool operator==(const Origin&, const Origin&) = default;
};

class NaiveTensor {
public:
    static NaiveTensor make(int tensor, DType dtype, const Index& shape);

    using Maybe = std::optional<NaiveTensor>;
    Maybe narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const;
    Maybe slice(std::int64_t dim, std::int64_t start, std::int64_t stop, std::int64_t step) const;
    Maybe select(std::int64_t dim, std::int64_t index) const;
    Maybe index_select(std::int64_t dim, const Index& indices) const;
    std::optional<std::vector<NaiveTensor>> chunk(std::int64_t chunks, std::int64_t dim) const;
    std::optional<std::vector<NaiveTensor>> split(std::int64_t size, std::int64_t dim) const;
    std::optional<std::vector<NaiveTensor>> split(const Index& sizes, std::int64_t dim) const;
    std::optional<std::vector<NaiveTensor>> unbind(std::int64_t dim) const;
    Maybe view(const Index& shape) const;
    Maybe reshape(const Index& shape) const;
    Maybe flatten(std::int64_t start, std::int64_t end) const;
    Maybe unflatten(std::int64_t dim, const Index& sizes) const;
    Maybe unsqueeze(std::int64_t dim) const;
    Maybe squeeze() const;
    Maybe squeeze(std::int64_t dim) const;
    Maybe transpose(std::int64_t a, std::int64_t b) const;
    Maybe t() const;
    Maybe permute(const Index& dims) const;
    Maybe movedim(const Index& source, const Index& destination) const;
    Maybe expand(const Index& sizes) const;
    Maybe contiguous() const;
    Maybe clone() const;
    Maybe to(DType dtype) const;
    Maybe view_as(DType dtype) const;
    static Maybe cat(const std::vector<NaiveTensor>& tensors, std::int64_t dim);

    DType dtype = DType::kU8;
    Index shape;
    /// In row-major order: origin, and position in the storage that PyTorch would have.
    std::vector<Origin> origins;
    std::vector<std::int64_t> positions;

    std::int64_t numel() const { return static_cast<std::int64_t>(origins.size()); }

private:
    NaiveTensor gather(const Index& new_shape, const std::function<Index(const Index&)>& old_index) const;
    std::optional<std::size_t> wrap(std::int64_t dim, std::size_t rank) const;
    std::optional<Index> infer(const Index& wanted, std::int64_t elements) const;
    bool strided(const Index& as_shape) const;
    NaiveTensor copied(bool keep_dense_order) const;
};

}  // namespace sluice::test

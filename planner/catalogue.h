#pragma once

#include "planner/ids.h"
#include "runtime/base/dtype.h"
#include "runtime/base/shape.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// One checkpoint tensor in Hugging Face coordinates. `shape` is the full, unsharded shape.
struct CatalogueTensor {
    std::string name;
    DType dtype = DType::kBF16;
    Dims shape;
    GroupId group = 0;
    /// Name of the tensor whose values this one shares (a stored head of a tied model); empty otherwise.
    std::string tied_to;

    [[nodiscard]] std::int64_t elements() const { return num_elements(shape); }
    [[nodiscard]] std::int64_t bytes() const { return elements() * size_of(dtype); }
};

/// All checkpoint tensors of a model, sorted by (group, name bytewise), whatever order they came in.
/// Groups: layer N of the language stack is group N + 1; the last group holds final norm and head; group 0 everything else.
/// Immutable after create; safe to read from any thread.
class Catalogue {
public:
    /// Sorts and groups `tensors` (their `group` fields are ignored and set). `layers` is the number of layers of the language stack.
    /// Refuses duplicate names, negative sizes and sizes whose bytes leave 64 bits, by name.
    static Result<Catalogue> create(std::vector<CatalogueTensor> tensors, int layers);

    [[nodiscard]] std::span<const CatalogueTensor> tensors() const { return tensors_; }
    [[nodiscard]] const CatalogueTensor& operator[](TensorId id) const {
        return tensors_[static_cast<std::size_t>(id)];
    }
    [[nodiscard]] std::size_t size() const { return tensors_.size(); }
    [[nodiscard]] std::optional<TensorId> find(std::string_view name) const;
    /// layers + 2.
    [[nodiscard]] int groups() const { return groups_; }
    /// Sum over all tensors, as stored (a stored tied head counts).
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    /// XXH3-64 over names, order, dtypes and shapes.
    [[nodiscard]] std::uint64_t digest() const { return digest_; }

private:
    std::vector<CatalogueTensor> tensors_;
    std::vector<TensorId> slots_;  // hash table over the names, open addressing, -1 = free
    int groups_ = 0;
    std::int64_t bytes_ = 0;
    std::uint64_t digest_ = 0;
};

/// Group of a tensor by its name: the first "layers.N." segment of the language stack (prefix "model." or "language_model.model.")
/// gives N + 1; "model.norm.*", "lm_head.*" and their language_model forms the last group; everything else group 0,
/// layers from number `layers` on (multi-token prediction) included.
GroupId group_of(std::string_view tensor_name, int layers);

}  // namespace sluice

#pragma once

#include "cli/model_source.h"
#include "planner/ids.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::cli {

/// What every element of every tensor is in every version: what the files say, or the generated values, and what
/// versions after the first make of either. Thread safe.
class WeightValues {
public:
    /// Shares the files of `model`; the catalogue must outlive it.
    explicit WeightValues(const Model& model);

    /// Writes elements [first_element, first_element + count) of the full tensor, as in `version` (>= 1), to `out`,
    /// without gaps; out need not be aligned.
    void read(TensorId tensor, std::int64_t first_element, std::int64_t count, std::int64_t version,
              std::byte* out) const;

    /// Nothing comes from files.
    [[nodiscard]] bool generated() const { return file_tensors_.empty(); }
    /// Of the tensor, or of the one it is tied to: what its generated values come from.
    [[nodiscard]] std::uint64_t name_hash_of(TensorId tensor) const {
        return name_hashes_[static_cast<std::size_t>(tensor)];
    }

private:
    const Catalogue& catalogue_;
    std::shared_ptr<const SafetensorsReader> files_;
    std::vector<const SafetensorsTensor*> file_tensors_;
    std::vector<std::uint64_t> name_hashes_;  // by TensorId; a tied tensor has that of its target
};

}  // namespace sluice::cli

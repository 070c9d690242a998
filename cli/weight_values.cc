#include "cli/weight_values.h"

#include "runtime/services/tensor_values.h"

#include <cstring>

namespace sluice::cli {

WeightValues::WeightValues(const Model& model)
    : catalogue_(model.catalogue), files_(model.files), file_tensors_(model.file_tensors) {
    name_hashes_.reserve(catalogue_.size());
    for (const CatalogueTensor& tensor : catalogue_.tensors()) {
        name_hashes_.push_back(name_hash(tensor.tied_to.empty() ? tensor.name : tensor.tied_to));
    }
}

void WeightValues::read(TensorId tensor, std::int64_t first_element, std::int64_t count, std::int64_t version,
                        std::byte* out) const {
    const auto id = static_cast<std::size_t>(tensor);
    const DType dtype = catalogue_[tensor].dtype;
    if (file_tensors_.empty()) {
        fill_generated(name_hashes_[id], dtype, first_element, count, version, out);
        return;
    }
    const std::int64_t size = size_of(dtype);
    std::memcpy(out, file_tensors_[id]->bytes.data() + first_element * size, static_cast<std::size_t>(count * size));
    advance_to_version(name_hashes_[id], dtype, first_element, count, version, out);
}

}  // namespace sluice::cli

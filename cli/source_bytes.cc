#include "cli/source_bytes.h"

namespace sluice::cli {

const std::byte* SourceBytes::read(TensorId tensor, std::int64_t begin, std::int64_t size) {
    const std::int64_t stored = size_of(catalogue_[tensor].dtype);
    const std::int64_t first = begin / stored;
    const std::int64_t last = (begin + size + stored - 1) / stored;
    bytes_.resize(static_cast<std::size_t>((last - first) * stored));
    values_.read(tensor, first, last - first, static_cast<std::int64_t>(version_), bytes_.data());
    return bytes_.data() + (begin - first * stored);
}

}  // namespace sluice::cli

#include "planner/catalogue_difference.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

namespace sluice {
namespace {

// Lengths go first, so that no two lists of tensors give the same text.
std::string text_of(const CatalogueTensor& tensor) {
    std::string out =
        fmt::format("{}:{} {} {}", tensor.name.size(), tensor.name, to_string(tensor.dtype), tensor.shape.size());
    for (const std::int64_t size : tensor.shape) {
        out += fmt::format(" {}", size);
    }
    return out + ";";
}

std::optional<CatalogueTensor> tensor_at(const Catalogue& catalogue, std::int64_t place) {
    return place < static_cast<std::int64_t>(catalogue.size()) ? std::optional(catalogue[static_cast<TensorId>(place)])
                                                               : std::nullopt;
}

}  // namespace

std::vector<std::uint64_t> run_digests(const Catalogue& catalogue, std::int64_t begin, std::int64_t step, int count) {
    const auto size = static_cast<std::int64_t>(catalogue.size());
    std::vector<std::uint64_t> out;
    for (int run = 0; run < count; ++run) {
        std::string text;
        const std::int64_t first = std::min(size, begin + run * step);
        for (std::int64_t place = first; place < std::min(size, first + step); ++place) {
            text += text_of(catalogue[static_cast<TensorId>(place)]);
        }
        out.push_back(XXH3_64bits(text.data(), text.size()));
    }
    return out;
}

std::string difference_at(const Catalogue& mine, std::int64_t place, const std::optional<CatalogueTensor>& theirs,
                          std::string_view my_name, std::string_view their_name) {
    const std::optional<CatalogueTensor> own = tensor_at(mine, place);
    if (theirs && !mine.find(theirs->name)) {
        return fmt::format("tensor {} is in {} only", theirs->name, their_name);
    }
    if (own && (!theirs || theirs->name != own->name)) {
        return fmt::format("tensor {} is in {} only, or in another place of the order", own->name, my_name);
    }
    if (!own || !theirs) {
        return fmt::format("{} has {} tensors, and {} more", my_name, mine.size(), their_name);
    }
    if (own->dtype != theirs->dtype) {
        return fmt::format("tensor {} has dtype {} in {} and {} in {}", own->name, to_string(own->dtype), my_name,
                           to_string(theirs->dtype), their_name);
    }
    return fmt::format("tensor {} has shape {} in {} and {} in {}", own->name, to_string(own->shape), my_name,
                       to_string(theirs->shape), their_name);
}

std::optional<std::string> first_difference(const Catalogue& mine, const Catalogue& theirs, std::string_view my_name,
                                            std::string_view their_name) {
    const auto most = static_cast<std::int64_t>(std::max(mine.size(), theirs.size()));
    for (std::int64_t place = 0; place < most; ++place) {
        const auto a = tensor_at(mine, place);
        const auto b = tensor_at(theirs, place);
        if (!a || !b || a->name != b->name || a->dtype != b->dtype || a->shape != b->shape) {
            return difference_at(mine, place, b, my_name, their_name);
        }
    }
    return std::nullopt;
}

}  // namespace sluice

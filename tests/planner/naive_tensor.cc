#include "tests/planner/naive_tensor.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace sluice::test {
namespace {

std::int64_t product(const Index& shape) {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Calls visit for every index of `shape` in row-major order.
void every_index(const Index& shape, const std::function<void(const Index&)>& visit) {
    const std::int64_t count = product(shape);
    for (std::int64_t flat = 0; flat < count; ++flat) {
        Index index(shape.size());
        std::int64_t rest = flat;
        for (std::size_t d = shape.size(); d-- > 0;) {
            index[d] = rest % shape[d];
            rest /= shape[d];
        }
        visit(index);
    }
}

std::size_t flat_index(const Index& shape, const Index& index) {
    std::int64_t flat = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
        flat = flat * shape[d] + index[d];
    }
    return static_cast<std::size_t>(flat);
}

}  // namespace

NaiveTensor NaiveTensor::make(int tensor, DType dtype, const Index& shape) {
    NaiveTensor out;
    out.dtype = dtype;
    out.shape = shape;
    for (std::int64_t i = 0; i < product(shape); ++i) {
        out.origins.push_back({tensor, dtype, i * size_of(dtype)});
        out.positions.push_back(i);
    }
    return out;
}

NaiveTensor NaiveTensor::gather(const Index& new_shape, const std::function<Index(const Index&)>& old_index) const {
    NaiveTensor out;
    out.dtype = dtype;
    out.shape = new_shape;
    every_index(new_shape, [&](const Index& index) {
        const std::size_t from = flat_index(shape, old_index(index));
        out.origins.push_back(origins[from]);
        out.positions.push_back(positions[from]);
    });
    return out;
}

std::optional<std::size_t> NaiveTensor::wrap(std::int64_t dim, std::size_t rank) const {
    const auto n = static_cast<std::int64_t>(rank);
    if (dim >= n || dim < -n) {
        return std::nullopt;
    }
    return static_cast<std::size_t>(dim < 0 ? dim + n : dim);
}

NaiveTensor::Maybe NaiveTensor::narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const {
    const auto d = wrap(dim, shape.size());
    if (!d || length < 0 || start > shape[*d] || start < -shape[*d]) {
        return std::nullopt;
    }
    const std::int64_t first = start < 0 ? start + shape[*d] : start;
    if (first + length > shape[*d]) {
        return std::nullopt;
    }
    Index out = shape;
    out[*d] = length;
    return gather(out, [&](Index index) {
        index[*d] += first;
        return index;
    });
}

NaiveTensor::Maybe NaiveTensor::slice(std::int64_t dim, std::int64_t start, std::int64_t stop,
                                      std::int64_t step) const {
    const auto d = wrap(dim, shape.size());
    if (!d || step <= 0) {
        return std::nullopt;
    }
    // As range(n)[start:stop:step] of Python, element by element.
    Index kept;
    const std::int64_t n = shape[*d];
    const std::int64_t from = start < 0 ? std::max<std::int64_t>(0, start + n) : start;
    const std::int64_t to = stop < 0 ? stop + n : stop;
    for (std::int64_t i = from; i < n && i < to; i += step) {
        kept.push_back(i);
    }
    Index out = shape;
    out[*d] = static_cast<std::int64_t>(kept.size());
    return gather(out, [&](Index index) {
        index[*d] = kept[static_cast<std::size_t>(index[*d])];
        return index;
    });
}

NaiveTensor::Maybe NaiveTensor::select(std::int64_t dim, std::int64_t index) const {
    const auto d = wrap(dim, shape.size());
    if (!d || index >= shape[*d] || index < -shape[*d]) {
        return std::nullopt;
    }
    Index out = shape;
    out.erase(out.begin() + static_cast<std::ptrdiff_t>(*d));
    return gather(out, [&](Index at) {
        at.insert(at.begin() + static_cast<std::ptrdiff_t>(*d), index < 0 ? index + shape[*d] : index);
        return at;
    });
}

NaiveTensor::Maybe NaiveTensor::index_select(std::int64_t dim, const Index& indices) const {
    const auto d = wrap(dim, shape.size());
    if (!d) {
        return std::nullopt;
    }
    for (const std::int64_t index : indices) {
        if (index >= shape[*d] || index < -shape[*d]) {
            return std::nullopt;
        }
    }
    Index out = shape;
    out[*d] = static_cast<std::int64_t>(indices.size());
    return gather(out,
                  [&](Index at) {
                      const std::int64_t index = indices[static_cast<std::size_t>(at[*d])];
                      at[*d] = index < 0 ? index + shape[*d] : index;
                      return at;
                  })
        .copied(false);
}

std::optional<std::vector<NaiveTensor>> NaiveTensor::split(const Index& sizes, std::int64_t dim) const {
    const auto d = wrap(dim, shape.size());
    if (!d || std::any_of(sizes.begin(), sizes.end(), [](std::int64_t s) { return s < 0; }) ||
        std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != shape[*d]) {
        return std::nullopt;
    }
    std::vector<NaiveTensor> parts;
    std::int64_t at = 0;
    for (const std::int64_t size : sizes) {
        parts.push_back(*narrow(dim, at, size));
        at += size;
    }
    return parts;
}

std::optional<std::vector<NaiveTensor>> NaiveTensor::split(std::int64_t size, std::int64_t dim) const {
    const auto d = wrap(dim, shape.size());
    if (!d || size < 0 || (size == 0 && shape[*d] > 0)) {
        return std::nullopt;
    }
    Index sizes;
    for (std::int64_t left = shape[*d]; left > 0; left -= size) {
        sizes.push_back(std::min(size, left));
    }
    if (sizes.empty()) {
        sizes.push_back(0);
    }
    return split(sizes, dim);
}

std::optional<std::vector<NaiveTensor>> NaiveTensor::chunk(std::int64_t chunks, std::int64_t dim) const {
    const auto d = wrap(dim, shape.size());
    if (!d || chunks <= 0) {
        return std::nullopt;
    }
    if (shape[*d] == 0) {
        return split(Index(static_cast<std::size_t>(chunks), 0), dim);
    }
    return split((shape[*d] + chunks - 1) / chunks, dim);
}

std::optional<std::vector<NaiveTensor>> NaiveTensor::unbind(std::int64_t dim) const {
    const auto d = wrap(dim, shape.size());
    if (!d) {
        return std::nullopt;
    }
    std::vector<NaiveTensor> parts;
    for (std::int64_t i = 0; i < shape[*d]; ++i) {
        parts.push_back(*select(dim, i));
    }
    return parts;
}

std::optional<Index> NaiveTensor::infer(const Index& wanted, std::int64_t elements) const {
    // Tries every value for an open dimension; one and only one must fit.
    const auto open = std::count(wanted.begin(), wanted.end(), -1);
    if (open > 1 || std::any_of(wanted.begin(), wanted.end(), [](std::int64_t s) { return s < -1; })) {
        return std::nullopt;
    }
    std::optional<Index> found;
    for (std::int64_t value = 0; value <= (open == 1 ? elements + 1 : 0); ++value) {
        Index candidate = wanted;
        std::replace(candidate.begin(), candidate.end(), std::int64_t{-1}, value);
        if (product(candidate) == elements) {
            if (found) {
                return std::nullopt;
            }
            found = candidate;
        }
    }
    return found;
}

// Whether the positions, laid out as `as_shape`, advance by one constant along each dimension.
bool NaiveTensor::strided(const Index& as_shape) const {
    if (origins.empty()) {
        return true;
    }
    Index steps(as_shape.size(), 0);
    for (std::size_t d = 0; d < as_shape.size(); ++d) {
        if (as_shape[d] > 1) {
            Index unit(as_shape.size(), 0);
            unit[d] = 1;
            steps[d] = positions[flat_index(as_shape, unit)] - positions[0];
        }
    }
    bool fits = true;
    every_index(as_shape, [&](const Index& index) {
        std::int64_t expected = positions[0];
        for (std::size_t d = 0; d < index.size(); ++d) {
            expected += index[d] * steps[d];
        }
        fits = fits && positions[flat_index(as_shape, index)] == expected;
    });
    return fits;
}

NaiveTensor NaiveTensor::copied(bool keep_dense_order) const {
    NaiveTensor out = *this;
    const std::set<std::int64_t> distinct(positions.begin(), positions.end());
    const bool dense = !distinct.empty() && distinct.size() == positions.size() &&
                       *distinct.rbegin() - *distinct.begin() + 1 == static_cast<std::int64_t>(distinct.size());
    for (std::size_t i = 0; i < positions.size(); ++i) {
        out.positions[i] = keep_dense_order && dense ? positions[i] - *distinct.begin() : static_cast<std::int64_t>(i);
    }
    return out;
}

NaiveTensor::Maybe NaiveTensor::view(const Index& wanted) const {
    const auto target = infer(wanted, numel());
    if (!target || !strided(*target)) {
        return std::nullopt;
    }
    NaiveTensor out = *this;
    out.shape = *target;
    return out;
}

NaiveTensor::Maybe NaiveTensor::reshape(const Index& wanted) const {
    const auto target = infer(wanted, numel());
    if (!target) {
        return std::nullopt;
    }
    NaiveTensor out = strided(*target) ? *this : copied(false);
    out.shape = *target;
    return out;
}

NaiveTensor::Maybe NaiveTensor::flatten(std::int64_t start, std::int64_t end) const {
    const std::size_t rank = std::max<std::size_t>(1, shape.size());
    const auto a = wrap(start, rank);
    const auto b = wrap(end, rank);
    if (!a || !b || *a > *b) {
        return std::nullopt;
    }
    if (shape.empty()) {
        return reshape({1});
    }
    Index target;
    for (std::size_t d = 0; d < shape.size(); ++d) {
        if (d > *a && d <= *b) {
            target.back() *= shape[d];
        } else {
            target.push_back(shape[d]);
        }
    }
    return reshape(target);
}

NaiveTensor::Maybe NaiveTensor::unflatten(std::int64_t dim, const Index& sizes) const {
    const auto d = wrap(dim, shape.size());
    if (!d || sizes.empty()) {
        return std::nullopt;
    }
    const auto inner = infer(sizes, shape[*d]);
    if (!inner) {
        return std::nullopt;
    }
    Index target = shape;
    target.erase(target.begin() + static_cast<std::ptrdiff_t>(*d));
    target.insert(target.begin() + static_cast<std::ptrdiff_t>(*d), inner->begin(), inner->end());
    return view(target);
}

NaiveTensor::Maybe NaiveTensor::unsqueeze(std::int64_t dim) const {
    const auto d = wrap(dim, shape.size() + 1);
    if (!d) {
        return std::nullopt;
    }
    NaiveTensor out = *this;
    out.shape.insert(out.shape.begin() + static_cast<std::ptrdiff_t>(*d), 1);
    return out;
}

NaiveTensor::Maybe NaiveTensor::squeeze() const {
    NaiveTensor out = *this;
    std::erase(out.shape, 1);
    return out;
}

NaiveTensor::Maybe NaiveTensor::squeeze(std::int64_t dim) const {
    const auto d = wrap(dim, std::max<std::size_t>(1, shape.size()));
    if (!d) {
        return std::nullopt;
    }
    NaiveTensor out = *this;
    if (!shape.empty() && shape[*d] == 1) {
        out.shape.erase(out.shape.begin() + static_cast<std::ptrdiff_t>(*d));
    }
    return out;
}

NaiveTensor::Maybe NaiveTensor::transpose(std::int64_t a, std::int64_t b) const {
    const std::size_t rank = std::max<std::size_t>(1, shape.size());
    const auto x = wrap(a, rank);
    const auto y = wrap(b, rank);
    if (!x || !y) {
        return std::nullopt;
    }
    if (shape.empty()) {
        return *this;
    }
    Index out = shape;
    std::swap(out[*x], out[*y]);
    return gather(out, [&](Index index) {
        std::swap(index[*x], index[*y]);
        return index;
    });
}

NaiveTensor::Maybe NaiveTensor::t() const {
    if (shape.size() > 2) {
        return std::nullopt;
    }
    return shape.size() < 2 ? *this : transpose(0, 1);
}

NaiveTensor::Maybe NaiveTensor::permute(const Index& dims) const {
    std::vector<std::size_t> from;
    Index out;
    for (const std::int64_t dim : dims) {
        const auto d = wrap(dim, shape.size());
        if (!d || std::find(from.begin(), from.end(), *d) != from.end()) {
            return std::nullopt;
        }
        from.push_back(*d);
        out.push_back(shape[*d]);
    }
    if (from.size() != shape.size()) {
        return std::nullopt;
    }
    return gather(out, [&](const Index& index) {
        Index old(index.size());
        for (std::size_t d = 0; d < from.size(); ++d) {
            old[from[d]] = index[d];
        }
        return old;
    });
}

NaiveTensor::Maybe NaiveTensor::movedim(const Index& source, const Index& destination) const {
    if (source.size() != destination.size()) {
        return std::nullopt;
    }
    const std::size_t rank = std::max<std::size_t>(1, shape.size());
    std::vector<std::pair<std::size_t, std::size_t>> moves;  // by destination
    std::set<std::size_t> taken;
    for (std::size_t i = 0; i < source.size(); ++i) {
        const auto from = wrap(source[i], rank);
        const auto to = wrap(destination[i], rank);
        if (!from || !to) {
            return std::nullopt;
        }
        moves.emplace_back(*to, *from);
        taken.insert(*from);
    }
    if (shape.empty()) {
        return *this;
    }
    std::sort(moves.begin(), moves.end());
    std::set<std::size_t> targets;
    for (const auto& move : moves) {
        targets.insert(move.first);
    }
    if (taken.size() != source.size() || targets.size() != source.size()) {
        return std::nullopt;
    }
    Index order;
    for (std::size_t d = 0; d < shape.size(); ++d) {
        if (!taken.contains(d)) {
            order.push_back(static_cast<std::int64_t>(d));
        }
    }
    for (const auto& [to, from] : moves) {
        order.insert(order.begin() + static_cast<std::ptrdiff_t>(to), static_cast<std::int64_t>(from));
    }
    return permute(order);
}

NaiveTensor::Maybe NaiveTensor::expand(const Index& sizes) const {
    if (sizes.size() < shape.size()) {
        return std::nullopt;
    }
    const std::size_t lead = sizes.size() - shape.size();
    Index out = sizes;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        const std::int64_t old = d < lead ? 1 : shape[d - lead];
        if (sizes[d] == -1 && d >= lead) {
            out[d] = old;
        }
        if (out[d] < 0 || (old != 1 && out[d] != old)) {
            return std::nullopt;
        }
    }
    return gather(out, [&](const Index& index) {
        Index old(index.begin() + static_cast<std::ptrdiff_t>(lead), index.end());
        for (std::size_t d = 0; d < old.size(); ++d) {
            old[d] = shape[d] == 1 ? 0 : old[d];
        }
        return old;
    });
}

NaiveTensor::Maybe NaiveTensor::contiguous() const {
    for (std::size_t i = 0; i < positions.size(); ++i) {
        if (positions[i] != positions[0] + static_cast<std::int64_t>(i)) {
            return copied(false);
        }
    }
    return *this;
}

NaiveTensor::Maybe NaiveTensor::clone() const { return copied(true); }

NaiveTensor::Maybe NaiveTensor::to(DType target) const {
    if (target == dtype) {
        return *this;
    }
    const auto convertible = [](DType d) {
        return d == DType::kF64 || d == DType::kF32 || d == DType::kF16 || d == DType::kBF16;
    };
    const bool again = std::any_of(origins.begin(), origins.end(), [&](const Origin& o) { return o.source != dtype; });
    if (again || !convertible(dtype) || !convertible(target)) {
        return std::nullopt;
    }
    NaiveTensor out = copied(true);
    out.dtype = target;
    return out;
}

NaiveTensor::Maybe NaiveTensor::view_as(DType target) const {
    if (std::any_of(origins.begin(), origins.end(), [&](const Origin& o) { return o.source != dtype; })) {
        return std::nullopt;
    }
    NaiveTensor out = *this;
    out.dtype = target;
    const std::int64_t old_size = size_of(dtype);
    const std::int64_t new_size = size_of(target);
    if (old_size == new_size) {
        for (Origin& origin : out.origins) {
            origin.source = target;
        }
        return out;
    }
    if (shape.empty()) {
        return std::nullopt;
    }
    const std::int64_t last = shape.back();
    for (std::size_t i = 0; last > 1 && i + 1 < positions.size(); ++i) {
        if (static_cast<std::int64_t>(i + 1) % last != 0 && positions[i + 1] != positions[i] + 1) {
            return std::nullopt;
        }
    }
    out.origins.clear();
    out.positions.clear();
    if (new_size < old_size) {
        const std::int64_t ratio = old_size / new_size;
        out.shape.back() *= ratio;
        for (std::size_t i = 0; i < origins.size(); ++i) {
            for (std::int64_t k = 0; k < ratio; ++k) {
                out.origins.push_back({origins[i].tensor, target, origins[i].byte + k * new_size});
                out.positions.push_back(positions[i] * ratio + k);
            }
        }
        return out;
    }
    const std::int64_t ratio = new_size / old_size;
    if (last % ratio != 0) {
        return std::nullopt;
    }
    out.shape.back() /= ratio;
    for (std::size_t i = 0; i < origins.size(); i += static_cast<std::size_t>(ratio)) {
        for (std::size_t k = 1; k < static_cast<std::size_t>(ratio); ++k) {
            const Origin& origin = origins[i + k];
            if (origin.tensor != origins[i].tensor ||
                origin.byte != origins[i].byte + static_cast<std::int64_t>(k) * old_size) {
                return std::nullopt;
            }
        }
        if (positions[i] % ratio != 0) {
            return std::nullopt;
        }
        out.origins.push_back({origins[i].tensor, target, origins[i].byte});
        out.positions.push_back(positions[i] / ratio);
    }
    return out;
}

NaiveTensor::Maybe NaiveTensor::cat(const std::vector<NaiveTensor>& tensors, std::int64_t dim) {
    std::vector<NaiveTensor> parts;
    for (const NaiveTensor& tensor : tensors) {
        if (tensor.dtype != tensors.front().dtype) {
            return std::nullopt;
        }
        if (tensor.shape != Index{0}) {
            parts.push_back(tensor);
        }
    }
    if (parts.empty()) {
        parts.push_back(tensors.front());
    }
    NaiveTensor out = parts.front();
    const auto d = out.wrap(dim, out.shape.size());
    if (!d) {
        return std::nullopt;
    }
    out.shape[*d] = 0;
    for (const NaiveTensor& part : parts) {
        Index other = part.shape;
        if (other.size() != out.shape.size()) {
            return std::nullopt;
        }
        other[*d] = out.shape[*d];
        if (other != out.shape) {
            return std::nullopt;
        }
        out.shape[*d] += part.shape[*d];
    }
    out.origins.clear();
    every_index(out.shape, [&](Index index) {
        for (const NaiveTensor& part : parts) {
            if (index[*d] < part.shape[*d]) {
                out.origins.push_back(part.origins[flat_index(part.shape, index)]);
                return;
            }
            index[*d] -= part.shape[*d];
        }
    });
    out.positions.resize(out.origins.size());
    std::iota(out.positions.begin(), out.positions.end(), 0);
    return out;
}

}  // namespace sluice::test

#include "planner/affine_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace sluice {
namespace {

// Beyond this a value is no sensible transfer any more; it is refused when it is recorded.
constexpr std::size_t kMaxPieces = 65536;
constexpr std::int64_t kMaxCutSteps = 4 << 20;

using Fine = AffineView::Fine;
using FineDims = AffineView::FineDims;
using Piece = AffineView::Piece;

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

// Smallest v >= 0 with v * l = target (mod step), or -1. `l` and `step` are positive.
std::int64_t solve_congruence(std::int64_t l, std::int64_t target, std::int64_t step) {
    const std::int64_t g = std::gcd(l, step);
    target = ((target % step) + step) % step;
    if (target % g != 0) {
        return -1;
    }
    const std::int64_t p = step / g;
    std::int64_t r0 = p;
    std::int64_t r1 = (l / g) % p;
    std::int64_t t0 = 0;
    std::int64_t t1 = 1;
    while (r1 != 0) {
        const std::int64_t q = r0 / r1;
        r0 = std::exchange(r1, r0 - q * r1);
        t0 = std::exchange(t1, t0 - q * t1);
    }
    const std::int64_t inverse = ((t0 % p) + p) % p;  // p == 1: everything is 0
    return static_cast<std::int64_t>(static_cast<__int128>(target / g) * inverse % p);
}

bool can_convert(DType from, DType to) {
    return is_floating(from) && is_floating(to) && size_of(from) > 1 && size_of(to) > 1;
}

void merge_neighbours(Piece& piece) {
    FineDims& fine = piece.fine;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < fine.size(); ++i) {
        if (kept > 0) {
            Fine& outer = fine[kept - 1];
            if (outer.dim == fine[i].dim && outer.step == fine[i].size * fine[i].step &&
                outer.stride == fine[i].size * fine[i].stride) {
                outer.size *= fine[i].size;
                outer.step = fine[i].step;
                outer.stride = fine[i].stride;
                continue;
            }
        }
        fine[kept++] = fine[i];
    }
    fine.resize(kept);
}

}  // namespace

// Cuts the fine dimensions ("line") of one dimension of one piece, and emits the resulting pieces.
class LineCutter {
public:
    LineCutter(const Piece& piece, int dim, AffineView::Pieces& out) : piece_(piece), dim_(dim), out_(out) {
        for (const Fine& f : piece.fine) {
            if (f.dim == dim) {
                line_.push_back(f);
            }
        }
        reach_.resize(line_.size() + 1, 0);
        for (std::size_t k = line_.size(); k-- > 0;) {
            reach_[k] = reach_[k + 1] + (line_[k].size - 1) * line_[k].step;
        }
    }

    // Keeps the indices start + i * step, i in [0, count), and renumbers them by i.
    void restrict_to(std::int64_t start, std::int64_t step, std::int64_t count) {
        step_ = step;
        last_ = step * (count - 1);
        window(0, piece_.begin[static_cast<std::size_t>(dim_)] - start, piece_.offset, {});
    }

    // Splits the dimension into (dim, dim + 1), the second of size `inner`. The piece's later dimensions move up by
    // one.
    void unflatten(std::int64_t inner) {
        inner_ = inner;
        split(0, piece_.begin[static_cast<std::size_t>(dim_)], piece_.offset, {});
    }

private:
    static void append(FineDims& line, int dim, std::int64_t size, std::int64_t step, std::int64_t stride) {
        if (size > 1) {
            line.push_back({dim, size, step, stride});
        }
    }

    void count_step() {
        if (++steps_ > kMaxCutSteps) {
            throw ViewError{"the result is cut too finely to be transferred"};
        }
    }

    // Indices within [0, last_] stay. `base` is the index of the first element of line_[k..].
    void window(std::size_t k, std::int64_t base, std::int64_t offset, const FineDims& kept) {
        count_step();
        if (base + reach_[k] < 0 || base > last_) {
            return;
        }
        if (base >= 0 && base + reach_[k] <= last_) {
            keep(k, base, offset, kept);
            return;
        }
        const Fine& f = line_[k];
        const std::int64_t inside = reach_[k + 1];
        const std::int64_t first = std::max<std::int64_t>(0, ceil_div(-(base + inside), f.step));
        const std::int64_t end = std::min(f.size, floor_div(last_ - base, f.step) + 1);
        const std::int64_t first_whole = std::max<std::int64_t>(0, ceil_div(-base, f.step));
        const std::int64_t end_whole = std::min(f.size, floor_div(last_ - inside - base, f.step) + 1);
        if (first_whole < end_whole) {
            FineDims more = kept;
            append(more, dim_, end_whole - first_whole, f.step, f.stride);
            keep(k + 1, base + first_whole * f.step, offset + first_whole * f.stride, more);
        }
        for (std::int64_t j = first; j < end; ++j) {
            if (j >= first_whole && j < end_whole) {
                j = end_whole - 1;
                continue;
            }
            window(k + 1, base + j * f.step, offset + j * f.stride, kept);
        }
    }

    // kept and all of line_[k..] lie within the window.
    void keep(std::size_t k, std::int64_t base, std::int64_t offset, const FineDims& kept) {
        FineDims line = kept;
        line.insert(line.end(), line_.begin() + static_cast<std::ptrdiff_t>(k), line_.end());
        if (step_ == 1) {
            emit(base, offset, line);
        } else {
            stride(line, 0, base, offset, {});
        }
    }

    // Of `line` those combinations stay whose index is a multiple of step_; indices are divided by it.
    void stride(const FineDims& line, std::size_t k, std::int64_t base, std::int64_t offset, const FineDims& kept) {
        count_step();
        if (k == line.size()) {
            if (base % step_ == 0) {
                emit(base / step_, offset, kept);
            }
            return;
        }
        const Fine& f = line[k];
        if (f.step % step_ == 0) {
            FineDims more = kept;
            append(more, dim_, f.size, f.step / step_, f.stride);
            stride(line, k + 1, base, offset, more);
            return;
        }
        // Every period-th index falls on the same residue.
        const std::int64_t period = step_ / std::gcd(f.step, step_);
        std::int64_t begin = 0;
        std::int64_t end = std::min(period, f.size);
        if (k + 1 == line.size()) {
            begin = solve_congruence(f.step, -base, step_);
            end = begin < 0 ? -1 : std::min(end, begin + 1);
        }
        for (std::int64_t v = begin; v < end; ++v) {
            FineDims more = kept;
            append(more, dim_, ceil_div(f.size - v, period), period * f.step / step_, period * f.stride);
            stride(line, k + 1, base + v * f.step, offset + v * f.stride, more);
        }
    }

    void split(std::size_t k, std::int64_t base, std::int64_t offset, const FineDims& outer) {
        count_step();
        const std::int64_t within = base % inner_;
        if (within + reach_[k] < inner_) {
            FineDims line = outer;
            for (std::size_t i = k; i < line_.size(); ++i) {
                append(line, dim_ + 1, line_[i].size, line_[i].step, line_[i].stride);
            }
            emit_split(base, offset, line);
            return;
        }
        const Fine& f = line_[k];
        if (f.step % inner_ == 0) {
            FineDims more = outer;
            append(more, dim_, f.size, f.step / inner_, f.stride);
            split(k + 1, base, offset, more);
            return;
        }
        // Every period-th index falls on the same place of a block; runs of neighbours that stay in one block go
        // together.
        const std::int64_t period = inner_ / std::gcd(f.step, inner_);
        const std::int64_t limit = std::min(period, f.size);
        for (std::int64_t v = 0; v < limit;) {
            const std::int64_t repeats = ceil_div(f.size - v, period);
            const std::int64_t same_end = std::min(limit, f.size - (repeats - 1) * period);
            const std::int64_t position = base + v * f.step;
            const std::int64_t in_block = position % inner_;
            FineDims line = outer;
            append(line, dim_, repeats, period * f.step / inner_, period * f.stride);
            if (in_block + reach_[k + 1] < inner_) {
                const std::int64_t run = std::min(same_end - v, (inner_ - 1 - reach_[k + 1] - in_block) / f.step + 1);
                append(line, dim_ + 1, run, f.step, f.stride);
                for (std::size_t i = k + 1; i < line_.size(); ++i) {
                    append(line, dim_ + 1, line_[i].size, line_[i].step, line_[i].stride);
                }
                emit_split(position, offset + v * f.stride, line);
                v += run;
            } else {
                split(k + 1, position, offset + v * f.stride, line);
                ++v;
            }
        }
    }

    Piece& emit_piece(std::int64_t offset) {
        if (out_.size() >= kMaxPieces) {
            throw ViewError{fmt::format("the result falls into more than {} pieces", kMaxPieces)};
        }
        Piece& out = out_.emplace_back();
        out.tensor = piece_.tensor;
        out.dtype = piece_.dtype;
        out.offset = offset;
        out.begin = piece_.begin;
        return out;
    }

    void emit(std::int64_t begin, std::int64_t offset, const FineDims& line) {
        Piece& out = emit_piece(offset);
        out.begin[static_cast<std::size_t>(dim_)] = begin;
        insert_line(out, line, 0);
    }

    void emit_split(std::int64_t position, std::int64_t offset, const FineDims& line) {
        Piece& out = emit_piece(offset);
        const auto at = out.begin.begin() + dim_;
        *at = position / inner_;
        out.begin.insert(at + 1, position % inner_);
        insert_line(out, line, 1);
    }

    void insert_line(Piece& out, const FineDims& line, int shift) {
        for (const Fine& f : piece_.fine) {
            if (f.dim < dim_) {
                out.fine.push_back(f);
            }
        }
        out.fine.insert(out.fine.end(), line.begin(), line.end());
        for (const Fine& f : piece_.fine) {
            if (f.dim > dim_) {
                out.fine.push_back({f.dim + shift, f.size, f.step, f.stride});
            }
        }
    }

    const Piece& piece_;
    int dim_;
    AffineView::Pieces& out_;
    FineDims line_;
    boost::container::small_vector<std::int64_t, 7> reach_;  // sum of (size - 1) * step of line_[k..]
    std::int64_t step_ = 1;
    std::int64_t last_ = 0;
    std::int64_t inner_ = 1;
    std::int64_t steps_ = 0;
};

AffineView::AffineView(TensorId tensor, DType dtype, const Dims& sizes)
    : sizes_(sizes), strides_(contiguous_strides(sizes)), dtype_(dtype) {
    if (numel() == 0) {
        return;
    }
    Piece& piece = pieces_.emplace_back();
    piece.tensor = tensor;
    piece.dtype = dtype;
    piece.begin.resize(sizes.size(), 0);
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        if (sizes[d] > 1) {
            piece.fine.push_back({static_cast<std::int32_t>(d), sizes[d], 1, strides_[d] * size_of(dtype)});
        }
    }
}

std::string AffineView::shape_text() const { return to_string(sizes_); }

bool AffineView::is_contiguous() const {
    if (numel() == 0) {
        return true;
    }
    std::int64_t expected = 1;
    for (std::size_t d = sizes_.size(); d-- > 0;) {
        if (sizes_[d] != 1) {
            if (strides_[d] != expected) {
                return false;
            }
            expected *= sizes_[d];
        }
    }
    return true;
}

int AffineView::dimension(std::int64_t dim) const {
    if (sizes_.empty()) {
        throw ViewError{"a 0-d tensor has no dimensions"};
    }
    return dimension_or_scalar(dim);
}

int AffineView::dimension_or_scalar(std::int64_t dim) const {
    const std::int64_t rank = std::max<std::int64_t>(1, this->dim());
    if (dim < -rank || dim >= rank) {
        throw ViewError{fmt::format("dimension {} is out of range for shape {}", dim, shape_text())};
    }
    return static_cast<int>(dim < 0 ? dim + rank : dim);
}

void AffineView::restrict_to(int dim, std::int64_t start, std::int64_t step, std::int64_t count) {
    const auto d = static_cast<std::size_t>(dim);
    const bool all = start == 0 && step == 1 && count == sizes_[d];
    storage_offset_ += start * strides_[d];
    strides_[d] *= step;
    sizes_[d] = count;
    if (all) {
        return;
    }
    if (count == 0) {
        pieces_.clear();
        return;
    }
    if (pieces_.size() == 1) {
        // The common case, without building anything: one plain fine dimension is cut.
        Piece& piece = pieces_.front();
        Fine* only = nullptr;
        bool plain = piece.begin[d] == 0;
        for (Fine& f : piece.fine) {
            if (f.dim == dim) {
                plain = plain && only == nullptr && f.step == 1;
                only = &f;
            }
        }
        if (plain && only != nullptr) {
            piece.offset += start * only->stride;
            only->stride *= step;
            only->size = count;
            if (count == 1) {
                piece.fine.erase(piece.fine.begin() + (only - piece.fine.data()));
            }
            return;
        }
    }
    Pieces cut;
    for (const Piece& piece : pieces_) {
        LineCutter(piece, dim, cut).restrict_to(start, step, count);
    }
    pieces_ = std::move(cut);
}

void AffineView::narrow(std::int64_t dim, std::int64_t start, std::int64_t length) {
    const int d = dimension(dim);
    const std::int64_t size = sizes_[static_cast<std::size_t>(d)];
    if (length < 0) {
        throw ViewError{fmt::format("length {} is negative", length)};
    }
    if (start < -size || start > size) {
        throw ViewError{fmt::format("start {} is out of range for dimension {} of size {}", start, d, size)};
    }
    start += start < 0 ? size : 0;
    if (length > size - start) {
        throw ViewError{fmt::format("start {} + length {} exceeds dimension {} of size {}", start, length, d, size)};
    }
    restrict_to(d, start, 1, length);
}

void AffineView::slice(std::int64_t dim, std::int64_t start, std::int64_t stop, std::int64_t step) {
    const int d = dimension(dim);
    const std::int64_t size = sizes_[static_cast<std::size_t>(d)];
    if (step < 1) {
        throw ViewError{fmt::format("slice step {} must be positive", step)};
    }
    const auto clamp = [size](std::int64_t at, std::int64_t low) {
        return std::clamp(at < 0 ? std::max(at, -size) + size : at, low, size);
    };
    start = clamp(start, 0);
    stop = clamp(stop, start);
    step = std::min(step, std::max<std::int64_t>(size, 1));
    restrict_to(d, start, step, (stop - start) / step + ((stop - start) % step != 0 ? 1 : 0));
}

void AffineView::select(std::int64_t dim, std::int64_t index) {
    const int d = dimension(dim);
    const std::int64_t size = sizes_[static_cast<std::size_t>(d)];
    if (index < -size || index >= size) {
        throw ViewError{fmt::format("index {} is out of range for dimension {} of size {}", index, d, size)};
    }
    restrict_to(d, index < 0 ? index + size : index, 1, 1);
    drop_dim(d);
}

void AffineView::index_select(std::int64_t dim, std::span<const std::int64_t> indices) {
    const int d = dimension(dim);
    const auto at = static_cast<std::size_t>(d);
    const std::int64_t size = sizes_[at];
    Dims wrapped(indices.begin(), indices.end());
    for (std::int64_t& index : wrapped) {
        if (index < -size || index >= size) {
            throw ViewError{fmt::format("index {} is out of range for dimension {} of size {}", index, d, size)};
        }
        index += index < 0 ? size : 0;
    }
    Dims new_sizes = sizes_;
    new_sizes[at] = static_cast<std::int64_t>(indices.size());
    if (!checked_num_elements(new_sizes)) {
        throw ViewError{"the result has more elements than 64 bits count"};
    }
    Pieces gathered;
    for (std::size_t i = 0; i < wrapped.size();) {
        // A run of indices at one positive distance is one cut.
        std::size_t end = i + 1;
        const std::int64_t step = end < wrapped.size() ? wrapped[end] - wrapped[i] : 1;
        while (step > 0 && end < wrapped.size() && wrapped[end] - wrapped[end - 1] == step) {
            ++end;
        }
        const std::size_t first_new = gathered.size();
        for (const Piece& piece : pieces_) {
            LineCutter(piece, d, gathered)
                .restrict_to(wrapped[i], std::max<std::int64_t>(step, 1), static_cast<std::int64_t>(end - i));
        }
        for (std::size_t p = first_new; p < gathered.size(); ++p) {
            gathered[p].begin[at] += static_cast<std::int64_t>(i);
        }
        i = end;
    }
    sizes_ = new_sizes;
    pieces_ = std::move(gathered);
    become_copy(contiguous_strides(sizes_));
}

void AffineView::drop_dim(int dim) {
    sizes_.erase(sizes_.begin() + dim);
    strides_.erase(strides_.begin() + dim);
    for (Piece& piece : pieces_) {
        piece.begin.erase(piece.begin.begin() + dim);
        for (Fine& f : piece.fine) {
            f.dim -= f.dim > dim ? 1 : 0;
        }
    }
}

// A new dimension; expanded (stride 0 in the source) when its size is not 1.
void AffineView::insert_dim(int dim, std::int64_t size, std::int64_t stride) {
    sizes_.insert(sizes_.begin() + dim, size);
    strides_.insert(strides_.begin() + dim, stride);
    for (Piece& piece : pieces_) {
        piece.begin.insert(piece.begin.begin() + dim, 0);
        auto at = piece.fine.begin();
        for (Fine& f : piece.fine) {
            if (f.dim >= dim) {
                ++f.dim;
            } else {
                ++at;
            }
        }
        if (size > 1) {
            piece.fine.insert(at, Fine{dim, size, 1, 0});
        }
    }
}

Dims AffineView::infer_shape(const Dims& shape) const {
    Dims out = shape;
    std::int64_t known = 1;
    std::ptrdiff_t open = -1;
    for (std::size_t d = 0; d < shape.size(); ++d) {
        if (shape[d] == -1) {
            if (open >= 0) {
                throw ViewError{"only one dimension can be inferred"};
            }
            open = static_cast<std::ptrdiff_t>(d);
        } else if (shape[d] < 0) {
            throw ViewError{fmt::format("invalid shape {}", to_string(shape))};
        } else {
            const auto product = checked_mul(known, shape[d]);
            if (!product) {
                throw ViewError{fmt::format("invalid shape {}", to_string(shape))};
            }
            known = *product;
        }
    }
    const std::int64_t elements = numel();
    if (open >= 0 && known == 0) {
        throw ViewError{fmt::format("shape {} of a tensor without elements can be anything", to_string(shape))};
    }
    if (open >= 0 && elements % known == 0) {
        out[static_cast<std::size_t>(open)] = elements / known;
    } else if (open >= 0 || elements != known) {
        throw ViewError{
            fmt::format("shape {} does not fit {} ({} elements)", to_string(shape), shape_text(), elements)};
    }
    return out;
}

// PyTorch's rule: the old dimensions fall into stretches that are contiguous in themselves; new dimensions may cut a
// stretch but not cross its border.
bool AffineView::view_strides(const Dims& shape, Dims& strides) const {
    if (numel() == 0) {
        strides = shape == sizes_ ? strides_ : contiguous_strides(shape);
        return true;
    }
    strides.resize(shape.size());
    auto to = static_cast<std::ptrdiff_t>(shape.size()) - 1;
    std::int64_t base = strides_.empty() ? 1 : strides_.back();
    std::int64_t old_count = 1;
    std::int64_t new_count = 1;
    for (std::size_t from = sizes_.size(); from-- > 0;) {
        old_count *= sizes_[from];
        if (from == 0 || (sizes_[from - 1] != 1 && strides_[from - 1] != old_count * base)) {
            while (to >= 0 && (new_count < old_count || shape[static_cast<std::size_t>(to)] == 1)) {
                strides[static_cast<std::size_t>(to)] = new_count * base;
                new_count *= shape[static_cast<std::size_t>(to)];
                --to;
            }
            if (new_count != old_count) {
                return false;
            }
            if (from > 0) {
                base = strides_[from - 1];
                old_count = 1;
                new_count = 1;
            }
        }
    }
    for (; to >= 0; --to) {  // a 0-d tensor, or size-1 dimensions in front
        strides[static_cast<std::size_t>(to)] = 1;
    }
    return true;
}

void AffineView::flatten_pieces() {
    for (Piece& piece : pieces_) {
        std::int64_t unit = 1;
        std::int64_t begin = 0;
        std::size_t f = piece.fine.size();
        for (std::size_t d = sizes_.size(); d-- > 0;) {
            begin += piece.begin[d] * unit;
            for (; f > 0 && piece.fine[f - 1].dim == static_cast<int>(d); --f) {
                piece.fine[f - 1].dim = 0;
                piece.fine[f - 1].step *= unit;
            }
            unit *= sizes_[d];
        }
        piece.begin.assign(1, begin);
        merge_neighbours(piece);
    }
}

void AffineView::unflatten_pieces(int dim, std::int64_t inner) {
    Pieces cut;
    for (const Piece& piece : pieces_) {
        LineCutter(piece, dim, cut).unflatten(inner);
    }
    pieces_ = std::move(cut);
}

void AffineView::set_shape(const Dims& shape, const Dims& strides) {
    if (shape != sizes_) {
        flatten_pieces();
        if (shape.empty()) {
            for (Piece& piece : pieces_) {
                piece.begin.clear();
            }
        }
        for (std::size_t d = shape.size(); d-- > 1;) {
            unflatten_pieces(0, shape[d]);
        }
    }
    sizes_ = shape;
    strides_ = strides;
}

void AffineView::become_copy(Dims strides) {
    strides_ = std::move(strides);
    storage_offset_ = 0;
    is_copy_ = true;
}

void AffineView::view(const Dims& shape) {
    const Dims inferred = infer_shape(shape);
    Dims strides;
    if (!view_strides(inferred, strides)) {
        throw ViewError{fmt::format("shape {} is no view of shape {} with strides {}; use reshape", to_string(inferred),
                                    shape_text(), to_string(strides_))};
    }
    set_shape(inferred, strides);
}

void AffineView::reshape(const Dims& shape) {
    const Dims inferred = infer_shape(shape);
    Dims strides;
    if (view_strides(inferred, strides)) {
        set_shape(inferred, strides);
    } else {
        strides = contiguous_strides(inferred);
        set_shape(inferred, strides);
        become_copy(strides);
    }
}

void AffineView::flatten(std::int64_t start_dim, std::int64_t end_dim) {
    const int start = dimension_or_scalar(start_dim);
    const int end = dimension_or_scalar(end_dim);
    if (start > end) {
        throw ViewError{"start_dim comes after end_dim"};
    }
    if (sizes_.empty()) {
        reshape({1});
        return;
    }
    Dims shape(sizes_.begin(), sizes_.begin() + start);
    std::int64_t product = 1;
    for (int d = start; d <= end; ++d) {
        product *= sizes_[static_cast<std::size_t>(d)];
    }
    shape.push_back(product);
    shape.insert(shape.end(), sizes_.begin() + end + 1, sizes_.end());
    reshape(shape);
}

void AffineView::unflatten(std::int64_t dim, const Dims& sizes) {
    const int d = dimension(dim);
    if (sizes.empty()) {
        throw ViewError{"unflatten needs at least one size"};
    }
    AffineView along(0, dtype_, {sizes_[static_cast<std::size_t>(d)]});
    const Dims inferred = along.infer_shape(sizes);
    Dims shape(sizes_.begin(), sizes_.begin() + d);
    shape.insert(shape.end(), inferred.begin(), inferred.end());
    shape.insert(shape.end(), sizes_.begin() + d + 1, sizes_.end());
    view(shape);
}

void AffineView::unsqueeze(std::int64_t dim) {
    const std::int64_t rank = this->dim() + 1;
    if (dim < -rank || dim >= rank) {
        throw ViewError{fmt::format("dimension {} is out of range for shape {}", dim, shape_text())};
    }
    const auto d = static_cast<int>(dim < 0 ? dim + rank : dim);
    const auto at = static_cast<std::size_t>(d);
    insert_dim(d, 1, at < sizes_.size() ? sizes_[at] * strides_[at] : 1);
}

void AffineView::squeeze() {
    for (std::size_t d = sizes_.size(); d-- > 0;) {
        if (sizes_[d] == 1) {
            drop_dim(static_cast<int>(d));
        }
    }
}

void AffineView::squeeze(std::int64_t dim) {
    const int d = dimension_or_scalar(dim);
    if (!sizes_.empty() && sizes_[static_cast<std::size_t>(d)] == 1) {
        drop_dim(d);
    }
}

void AffineView::transpose(std::int64_t dim0, std::int64_t dim1) {
    const int a = dimension_or_scalar(dim0);
    const int b = dimension_or_scalar(dim1);
    Dims order(sizes_.size());
    std::iota(order.begin(), order.end(), 0);
    if (!order.empty()) {
        std::swap(order[static_cast<std::size_t>(a)], order[static_cast<std::size_t>(b)]);
    }
    permute(order);
}

void AffineView::t() {
    if (dim() > 2) {
        throw ViewError{fmt::format("t() takes at most 2 dimensions, not shape {}", shape_text())};
    }
    if (dim() == 2) {
        transpose(0, 1);
    }
}

void AffineView::permute(const Dims& dims) {
    if (dims.size() != sizes_.size()) {
        throw ViewError{fmt::format("{} does not order the {} dimensions of {}", to_string(dims), dim(), shape_text())};
    }
    Dims new_of(dims.size(), -1);
    Dims sizes;
    Dims strides;
    for (std::size_t d = 0; d < dims.size(); ++d) {
        const auto old = static_cast<std::size_t>(dimension(dims[d]));
        if (new_of[old] != -1) {
            throw ViewError{fmt::format("{} names a dimension twice", to_string(dims))};
        }
        new_of[old] = static_cast<std::int64_t>(d);
        sizes.push_back(sizes_[old]);
        strides.push_back(strides_[old]);
    }
    for (Piece& piece : pieces_) {
        const Dims begin = piece.begin;
        for (std::size_t old = 0; old < dims.size(); ++old) {
            piece.begin[static_cast<std::size_t>(new_of[old])] = begin[old];
        }
        for (Fine& f : piece.fine) {
            f.dim = static_cast<std::int32_t>(new_of[static_cast<std::size_t>(f.dim)]);
        }
        std::sort(piece.fine.begin(), piece.fine.end(),
                  [](const Fine& a, const Fine& b) { return a.dim != b.dim ? a.dim < b.dim : a.step > b.step; });
    }
    sizes_ = sizes;
    strides_ = strides;
}

void AffineView::movedim(const Dims& source, const Dims& destination) {
    if (source.size() != destination.size()) {
        throw ViewError{"source and destination name different numbers of dimensions"};
    }
    Dims order(sizes_.size(), -1);
    Dims moved(sizes_.size(), 0);
    for (std::size_t i = 0; i < source.size(); ++i) {
        const int from = dimension_or_scalar(source[i]);
        const int to = dimension_or_scalar(destination[i]);
        if (sizes_.empty()) {
            continue;
        }
        if (moved[static_cast<std::size_t>(from)] != 0 || order[static_cast<std::size_t>(to)] != -1) {
            throw ViewError{fmt::format("{} -> {} names a dimension twice", to_string(source), to_string(destination))};
        }
        moved[static_cast<std::size_t>(from)] = 1;
        order[static_cast<std::size_t>(to)] = from;
    }
    std::size_t next = 0;
    for (std::int64_t& from : order) {
        if (from == -1) {
            while (moved[next] != 0) {
                ++next;
            }
            from = static_cast<std::int64_t>(next++);
        }
    }
    permute(order);
}

void AffineView::expand(const Dims& sizes) {
    if (sizes.size() < sizes_.size()) {
        throw ViewError{fmt::format("{} has fewer dimensions than shape {}", to_string(sizes), shape_text())};
    }
    const std::size_t lead = sizes.size() - sizes_.size();
    Dims target = sizes;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        if (d >= lead && sizes[d] == -1) {
            target[d] = sizes_[d - lead];
        }
        if (target[d] < 0 || (d >= lead && sizes_[d - lead] != 1 && target[d] != sizes_[d - lead])) {
            throw ViewError{fmt::format("shape {} cannot be expanded to {}", shape_text(), to_string(sizes))};
        }
    }
    const auto elements = checked_num_elements(target);
    if (!elements || !checked_mul(*elements, size_of(dtype_))) {
        throw ViewError{fmt::format("{} has more bytes than 64 bits count", to_string(sizes))};
    }
    for (std::size_t d = lead; d < target.size(); ++d) {
        const std::size_t old = d - lead;
        if (sizes_[old] != target[d]) {
            const auto index = static_cast<int>(old);
            drop_dim(index);
            insert_dim(index, target[d], 0);
        }
    }
    for (std::size_t d = lead; d-- > 0;) {
        const std::int64_t next = sizes_.empty() ? 1 : sizes_.front() * strides_.front();
        insert_dim(0, target[d], target[d] == 1 ? next : 0);
    }
    if (*elements == 0) {
        pieces_.clear();
    }
}

void AffineView::contiguous() {
    if (!is_contiguous()) {
        become_copy(contiguous_strides(sizes_));
    }
}

// A copy keeps the order of the dimensions in memory when the original is dense.
Dims AffineView::copied_strides() const {
    Dims order(sizes_.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        const std::int64_t stride_a = strides_[static_cast<std::size_t>(a)];
        const std::int64_t stride_b = strides_[static_cast<std::size_t>(b)];
        return stride_a != stride_b ? stride_a < stride_b : a < b;
    });
    std::int64_t expected = 1;
    for (const std::int64_t d : order) {
        const auto at = static_cast<std::size_t>(d);
        if (sizes_[at] == 1) {
            continue;
        }
        if (strides_[at] != expected) {
            return contiguous_strides(sizes_);
        }
        expected *= sizes_[at];
    }
    return strides_;
}

void AffineView::clone() { become_copy(copied_strides()); }

void AffineView::view_as(DType dtype) {
    const std::int64_t from = size_of(dtype_);
    const std::int64_t to = size_of(dtype);
    for (const Piece& piece : pieces_) {
        if (piece.dtype != dtype_) {
            throw ViewError{fmt::format("the bits of a value converted from {} to {} cannot be viewed as {}",
                                        to_string(piece.dtype), to_string(dtype_), to_string(dtype))};
        }
    }
    if (from != to) {
        if (sizes_.empty()) {
            throw ViewError{fmt::format("a 0-d {} tensor cannot be viewed as {}", to_string(dtype_), to_string(dtype))};
        }
        if (strides_.back() != 1) {
            throw ViewError{fmt::format("the last dimension must have stride 1, not {}, to be viewed as {}",
                                        strides_.back(), to_string(dtype))};
        }
    }
    const std::size_t last = sizes_.empty() ? 0 : sizes_.size() - 1;
    const auto last_dim = static_cast<std::int32_t>(last);
    if (to < from) {
        const std::int64_t ratio = from / to;
        sizes_[last] *= ratio;
        storage_offset_ *= ratio;
        for (std::size_t d = 0; d < last; ++d) {
            strides_[d] *= ratio;
        }
        for (Piece& piece : pieces_) {
            piece.begin[last] *= ratio;
            for (Fine& f : piece.fine) {
                f.step *= f.dim == last_dim ? ratio : 1;
            }
            piece.fine.push_back({last_dim, ratio, 1, to});
            merge_neighbours(piece);
        }
    } else if (to > from) {
        const std::int64_t ratio = to / from;
        bool divides = sizes_[last] % ratio == 0 && storage_offset_ % ratio == 0;
        for (std::size_t d = 0; d < last; ++d) {
            divides = divides && strides_[d] % ratio == 0;
        }
        if (!divides) {
            throw ViewError{fmt::format("shape {} with strides {} and offset {} does not divide into elements of {}",
                                        shape_text(), to_string(strides_), storage_offset_, to_string(dtype))};
        }
        unflatten_pieces(static_cast<int>(last), ratio);
        for (Piece& piece : pieces_) {
            const bool whole = piece.begin[last + 1] == 0 && !piece.fine.empty() &&
                               piece.fine.back().dim == last_dim + 1 && piece.fine.back().size == ratio &&
                               piece.fine.back().stride == from;
            if (!whole) {
                throw ViewError{
                    fmt::format("elements of {} would be put together from bytes that lie apart in the checkpoint",
                                to_string(dtype))};
            }
            piece.begin.pop_back();
            piece.fine.pop_back();
        }
        sizes_[last] /= ratio;
        storage_offset_ /= ratio;
        for (std::size_t d = 0; d < last; ++d) {
            strides_[d] /= ratio;
        }
    }
    dtype_ = dtype;
    for (Piece& piece : pieces_) {
        piece.dtype = dtype;
    }
}

void AffineView::to(DType dtype) {
    if (dtype == dtype_) {
        return;
    }
    if (!can_convert(dtype_, dtype)) {
        throw ViewError{fmt::format("there is no conversion from {} to {}", to_string(dtype_), to_string(dtype))};
    }
    for (const Piece& piece : pieces_) {
        if (piece.dtype != dtype_) {
            throw ViewError{fmt::format("a value already converted from {} to {} cannot be converted again",
                                        to_string(piece.dtype), to_string(dtype_))};
        }
    }
    become_copy(copied_strides());
    dtype_ = dtype;
}

std::vector<std::int64_t> AffineView::split_sizes(std::int64_t split_size, std::int64_t dim) const {
    const std::int64_t size = sizes_[static_cast<std::size_t>(dimension(dim))];
    if (split_size < 0 || (split_size == 0 && size != 0)) {
        throw ViewError{fmt::format("split size {} is not possible for size {}", split_size, size)};
    }
    if (size == 0) {
        return {0};
    }
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(size / split_size), split_size);
    if (size % split_size != 0) {
        sizes.push_back(size % split_size);
    }
    return sizes;
}

std::vector<std::int64_t> AffineView::split_sizes(std::span<const std::int64_t> sizes, std::int64_t dim) const {
    const std::int64_t size = sizes_[static_cast<std::size_t>(dimension(dim))];
    std::int64_t left = size;
    for (const std::int64_t part : sizes) {
        if (part < 0 || part > left) {
            left = -1;
            break;
        }
        left -= part;
    }
    if (left != 0) {
        throw ViewError{fmt::format("parts {} do not add up to size {}", to_string(sizes), size)};
    }
    return {sizes.begin(), sizes.end()};
}

std::vector<std::int64_t> AffineView::chunk_sizes(std::int64_t chunks, std::int64_t dim) const {
    const std::int64_t size = sizes_[static_cast<std::size_t>(dimension(dim))];
    if (chunks < 1) {
        throw ViewError{fmt::format("{} chunks are not possible", chunks)};
    }
    if (size == 0) {
        return std::vector<std::int64_t>(static_cast<std::size_t>(chunks), 0);
    }
    return split_sizes(ceil_div(size, chunks), dim);
}

AffineView AffineView::cat(std::span<const AffineView> tensors, std::int64_t dim) {
    if (tensors.empty()) {
        throw ViewError{"cat needs at least one tensor"};
    }
    // PyTorch skips tensors of shape [0] whatever the others' shape is.
    const auto is_void = [](const AffineView& v) { return v.sizes_.size() == 1 && v.sizes_[0] == 0; };
    const AffineView* first = &tensors.front();
    for (const AffineView& v : tensors) {
        if (!is_void(v)) {
            first = &v;
            break;
        }
    }
    AffineView out = *first;
    const int d = out.dimension(dim);
    const auto at = static_cast<std::size_t>(d);
    out.pieces_.clear();
    out.sizes_[at] = 0;
    for (const AffineView& v : tensors) {
        if (v.dtype_ != out.dtype_) {
            throw ViewError{fmt::format("dtypes {} and {} differ", to_string(out.dtype_), to_string(v.dtype_))};
        }
        if (is_void(v)) {
            continue;
        }
        for (std::size_t i = 0; i < std::max(v.sizes_.size(), out.sizes_.size()); ++i) {
            if (v.sizes_.size() != out.sizes_.size() || (i != at && v.sizes_[i] != out.sizes_[i])) {
                throw ViewError{fmt::format("shapes {} and {} do not fit along dimension {}", first->shape_text(),
                                            v.shape_text(), d)};
            }
        }
        for (const Piece& piece : v.pieces_) {
            if (out.pieces_.size() >= kMaxPieces) {
                throw ViewError{fmt::format("the result falls into more than {} pieces", kMaxPieces)};
            }
            out.pieces_.push_back(piece);
            out.pieces_.back().begin[at] += out.sizes_[at];
        }
        out.sizes_[at] += v.sizes_[at];
    }
    out.become_copy(contiguous_strides(out.sizes_));
    return out;
}

}  // namespace sluice

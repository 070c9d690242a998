#include "planner/box_union.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace sluice {
namespace {

// Part of a box after cutting the range into rows: rows [begin, end) hold `inner` each.
struct RowPart {
    std::int64_t begin;
    std::int64_t end;
    ByteBox inner;
};

std::int64_t span_of(const ByteBox& box, std::size_t from) {
    std::int64_t span = box.run - 1;
    for (std::size_t k = from; k < box.lines.size(); ++k) {
        span += (box.lines[k].size - 1) * box.lines[k].stride;
    }
    return span;
}

// Cuts boxes whose strides are at most `row` into parts that stay within their rows.
class RowCutter {
public:
    RowCutter(std::int64_t row, std::vector<RowPart>& out) : row_(row), out_(out) {}

    void cut(const ByteBox& box) { cut(box, 0, box.offset, 1, 0); }

private:
    // The part of `box` made of lines [k, ...) at `offset`, repeated `repeats` times every `row_step` rows.
    void cut(const ByteBox& box, std::size_t k, std::int64_t offset, std::int64_t repeats, std::int64_t row_step) {
        if (offset % row_ + span_of(box, k) < row_) {
            ByteBox inner;
            inner.offset = offset % row_;
            inner.run = box.run;
            inner.lines.assign(box.lines.begin() + static_cast<std::ptrdiff_t>(k), box.lines.end());
            emit(offset / row_, repeats, row_step, std::move(inner));
            return;
        }
        if (k == box.lines.size()) {
            cut_run(offset, box.run, repeats, row_step);
            return;
        }
        const ByteBox::Line line = box.lines[k];
        const std::int64_t period = row_ / std::gcd(line.stride, row_);
        if (repeats == 1 && period < line.size) {
            for (std::int64_t v = 0; v < period; ++v) {
                cut(box, k + 1, offset + v * line.stride, (line.size - v + period - 1) / period,
                    period * line.stride / row_);
            }
            return;
        }
        for (std::int64_t j = 0; j < line.size; ++j) {
            cut(box, k + 1, offset + j * line.stride, repeats, row_step);
        }
    }

    // A gapless run: head, whole rows, tail.
    void cut_run(std::int64_t offset, std::int64_t run, std::int64_t repeats, std::int64_t row_step) {
        while (run > 0) {
            const std::int64_t within = offset % row_;
            const bool whole = within == 0 && run >= row_;
            const std::int64_t rows = whole ? run / row_ : 1;
            const std::int64_t length = whole ? row_ : std::min(run, row_ - within);
            ByteBox inner;
            inner.offset = within;
            inner.run = length;
            for (std::int64_t u = 0; u < repeats; ++u) {
                const std::int64_t row = offset / row_ + u * row_step;
                out_.push_back({row, row + rows, inner});
            }
            offset += rows * length;
            run -= rows * length;
        }
    }

    void emit(std::int64_t row, std::int64_t repeats, std::int64_t row_step, ByteBox inner) {
        if (row_step == 1) {
            out_.push_back({row, row + repeats, std::move(inner)});
            return;
        }
        for (std::int64_t u = 0; u < repeats; ++u) {
            out_.push_back({row + u * row_step, row + u * row_step + 1, inner});
        }
    }

    std::int64_t row_;
    std::vector<RowPart>& out_;
};

BoxUnion sweep_runs(std::vector<ByteBox>& boxes, std::int64_t length) {
    std::sort(boxes.begin(), boxes.end(), [](const ByteBox& a, const ByteBox& b) { return a.offset < b.offset; });
    BoxUnion out;
    std::int64_t once = 0;   // everything below is covered, or a hole already seen
    std::int64_t twice = 0;  // everything below that is covered twice is counted
    for (const ByteBox& box : boxes) {
        const std::int64_t end = box.offset + box.run;
        if (box.offset > once && out.first_hole < 0) {
            out.first_hole = once;
        }
        // What lies below `once` and above `twice` is covered a second time.
        const std::int64_t from = std::max(box.offset, twice);
        const std::int64_t to = std::min(end, once);
        if (to > from) {
            if (out.first_overlap < 0) {
                out.first_overlap = from;
            }
            out.overlapped += to - from;
            twice = to;
        }
        out.covered += std::max<std::int64_t>(0, end - std::max(once, box.offset));
        once = std::max(once, end);
    }
    if (out.first_hole < 0 && once < length) {
        out.first_hole = once;
    }
    return out;
}

void add_rows(BoxUnion& total, const BoxUnion& row, std::int64_t rows, std::int64_t row_start) {
    total.covered += row.covered * rows;
    total.overlapped += row.overlapped * rows;
    if (total.first_hole < 0 && row.first_hole >= 0) {
        total.first_hole = row_start + row.first_hole;
    }
    if (total.first_overlap < 0 && row.first_overlap >= 0) {
        total.first_overlap = row_start + row.first_overlap;
    }
}

}  // namespace

ByteBox make_byte_box(std::int64_t offset, std::int64_t item, std::span<const std::int64_t> sizes,
                      std::span<const std::int64_t> strides) {
    ByteBox box;
    box.offset = offset;
    box.run = item;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        if (sizes[d] == 0) {
            box.run = 0;
            box.lines.clear();
            return box;
        }
        if (sizes[d] != 1 && strides[d] != 0) {
            box.lines.push_back({sizes[d], strides[d]});
        }
    }
    std::sort(box.lines.begin(), box.lines.end(),
              [](const ByteBox::Line& a, const ByteBox::Line& b) { return a.stride > b.stride; });
    std::size_t kept = 0;
    for (const ByteBox::Line line : box.lines) {
        if (kept > 0 && box.lines[kept - 1].stride == line.size * line.stride) {
            box.lines[kept - 1] = {box.lines[kept - 1].size * line.size, line.stride};
        } else {
            box.lines[kept++] = line;
        }
    }
    box.lines.resize(kept);
    if (!box.lines.empty() && box.lines.back().stride == box.run) {
        box.run *= box.lines.back().size;
        box.lines.pop_back();
    }
    return box;
}

BoxUnion unite(std::vector<ByteBox> boxes, std::int64_t length) {
    std::erase_if(boxes, [](const ByteBox& box) { return box.run == 0; });
    std::int64_t row = 0;
    for (const ByteBox& box : boxes) {
        row = box.lines.empty() ? row : std::max(row, box.lines.front().stride);
    }
    if (row == 0) {
        return sweep_runs(boxes, length);
    }

    std::vector<RowPart> parts;
    RowCutter cutter(row, parts);
    for (const ByteBox& box : boxes) {
        cutter.cut(box);
    }
    std::sort(parts.begin(), parts.end(), [](const RowPart& a, const RowPart& b) { return a.begin < b.begin; });

    BoxUnion total;
    std::vector<std::size_t> active;
    std::size_t next = 0;
    const std::int64_t rows = length / row + (length % row != 0 ? 1 : 0);
    for (std::int64_t at = 0; at < rows;) {
        std::erase_if(active, [&](std::size_t part) { return parts[part].end <= at; });
        for (; next < parts.size() && parts[next].begin == at; ++next) {
            active.push_back(next);
        }
        // The last row may be short, and is then looked at alone.
        std::int64_t end = at < rows - 1 && length % row != 0 ? rows - 1 : rows;
        end = next < parts.size() ? std::min(end, parts[next].begin) : end;
        std::vector<ByteBox> inner;
        inner.reserve(active.size());
        for (const std::size_t part : active) {
            end = std::min(end, parts[part].end);
            inner.push_back(parts[part].inner);
        }
        add_rows(total, unite(std::move(inner), std::min(row, length - at * row)), end - at, at * row);
        at = end;
    }
    return total;
}

}  // namespace sluice

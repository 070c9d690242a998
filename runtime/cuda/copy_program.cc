#include "runtime/cuda/copy_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace sluice {
namespace {

// Below 2^31, and a multiple of every unit, so that parts stay aligned.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
constexpr std::int64_t kVector = 16;

Conversion conversion_of(DType from, DType to) {
    if (from == to) {
        return Conversion::kNone;
    }
    if (from == DType::kF32 && to == DType::kBF16) {
        return Conversion::kF32Bf16;
    }
    if (from == DType::kF32 && to == DType::kF16) {
        return Conversion::kF32F16;
    }
    if (from == DType::kBF16 && to == DType::kF32) {
        return Conversion::kBf16F32;
    }
    if (from == DType::kF16 && to == DType::kF32) {
        return Conversion::kF16F32;
    }
    return Conversion::kOther;
}

std::uint8_t shift_of(DType type) {
    return static_cast<std::uint8_t>(std::countr_zero(static_cast<std::uint64_t>(size_of(type))));
}

/// One copy in the form of descriptors: runs that are contiguous on both sides, and dimensions over them.
class Splitter {
public:
    Splitter(const ProgramCopy& asked, CopyProgram& program) : asked_(asked), program_(program) {
        base_.conversion = conversion_of(asked.from, asked.to);
        base_.source_base = asked.source_base;
        base_.target_base = asked.target_base;
        base_.tag = asked.tag;
        const bool converts = base_.conversion != Conversion::kNone;
        if (converts) {
            base_.from = asked.from;
            base_.to = asked.to;
            base_.source_shift = shift_of(asked.from);
            base_.target_shift = shift_of(asked.to);
            base_.wire_shift = std::min(base_.source_shift, base_.target_shift);
            program.converts = true;
        }
        // The walking order is kept: dimensions are merged with their neighbours only.
        const StridedCopy& copy = asked.copy;
        for (std::size_t d = 0; d < copy.sizes.size(); ++d) {
            if (copy.sizes[d] != 1) {
                add_dimension({copy.sizes[d], copy.src_strides[d], copy.dst_strides[d]});
            }
        }
        run_ = converts ? 1 : copy.item;  // elements, or bytes
        if (!dims_.empty() && dims_.back().source == copy.item && dims_.back().target == target_item()) {
            run_ *= dims_.back().size;
            dims_.pop_back();
        }
        run_ <<= base_.wire_shift;
    }

    void emit_all() {
        const auto address = [](const std::byte* base, std::int64_t offset) {
            return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(base)) + offset;
        };
        emit(0, address(asked_.source_base == CopyBase::kAddress ? asked_.source : nullptr, asked_.copy.src_offset),
             address(asked_.target_base == CopyBase::kAddress ? asked_.target : nullptr, asked_.copy.dst_offset));
    }

private:
    struct Dimension {
        std::int64_t size, source, target;
    };

    [[nodiscard]] std::int64_t target_item() const {
        return base_.conversion == Conversion::kNone ? asked_.copy.item : std::int64_t{1} << base_.target_shift;
    }

    void add_dimension(const Dimension& dim) {
        if (!dims_.empty() && dims_.back().source == dim.size * dim.source &&
            dims_.back().target == dim.size * dim.target) {
            dims_.back() = {dims_.back().size * dim.size, dim.source, dim.target};
        } else {
            dims_.push_back(dim);
        }
    }

    [[nodiscard]] std::int64_t wire_bytes_from(std::size_t first) const {
        std::int64_t bytes = run_;
        for (std::size_t d = first; d < dims_.size(); ++d) {
            bytes *= dims_[d].size;
        }
        return bytes;
    }

    // Dimensions from `first` on, at these places: whole if one descriptor holds them, else index by index, or in parts.
    void emit(std::size_t first, std::int64_t source, std::int64_t target) {
        const std::int64_t bytes = wire_bytes_from(first);
        if (bytes == 0) {
            return;
        }
        if (bytes <= kMostBytes && dims_.size() - first <= CopyDescriptor::kMaxRank) {
            put(first, source, target, run_, first < dims_.size() ? dims_[first].size : 1);
            return;
        }
        if (first == dims_.size()) {
            for (std::int64_t at = 0; at < run_; at += kMostBytes) {
                const std::int64_t elements = at >> base_.wire_shift;
                put(first, source + (elements << base_.source_shift), target + (elements << base_.target_shift),
                    std::min(kMostBytes, run_ - at), 1);
            }
            return;
        }
        const Dimension& outer = dims_[first];
        const std::int64_t inner = bytes / outer.size;
        std::int64_t part = 1;
        if (inner <= kMostBytes && dims_.size() - first <= CopyDescriptor::kMaxRank) {
            part = std::max<std::int64_t>(1, kMostBytes / inner);
        }
        for (std::int64_t i = 0; i < outer.size; i += part) {
            const std::int64_t from = source + i * outer.source;
            const std::int64_t to = target + i * outer.target;
            if (part == 1) {
                emit(first + 1, from, to);
            } else {
                put(first, from, to, run_, std::min(part, outer.size - i));
            }
        }
    }

    void put(std::size_t first, std::int64_t source, std::int64_t target, std::int64_t run, std::int64_t outer_size) {
        CopyDescriptor out = base_;
        out.wire_begin = program_.wire_bytes;
        out.source = source;
        out.target = target;
        out.run = make_divider(static_cast<std::uint32_t>(run));
        std::int64_t wide = run | out.wire_begin;  // everything that must be a multiple of the unit
        std::int64_t source_side = source;
        std::int64_t target_side = target;
        std::int64_t bytes = run;
        for (std::size_t d = first; d < dims_.size(); ++d) {
            const Dimension& dim = dims_[d];
            const std::int64_t size = d == first ? outer_size : dim.size;
            out.dims[out.rank++] = {make_divider(static_cast<std::uint32_t>(size)), 0, dim.source, dim.target};
            source_side |= dim.source;
            target_side |= dim.target;
            bytes *= size;
        }
        if (out.conversion == Conversion::kNone) {
            const std::int64_t all = wide | source_side | target_side;
            std::int64_t unit = kVector;
            while (all % unit != 0) {
                unit /= 2;
            }
            out.unit = static_cast<std::uint8_t>(unit);
        } else {
            // Half a vector of the wire form: a whole one of the wider side, as in all conversions that have a fast way.
            const std::int64_t half = kVector / 2;
            const auto aligned = [&](std::int64_t side, std::uint8_t shift) {
                return side % (shift == out.wire_shift ? half : kVector) == 0;
            };
            const bool fast = out.conversion != Conversion::kOther && wide % half == 0 &&
                              aligned(source_side, out.source_shift) && aligned(target_side, out.target_shift);
            out.unit = static_cast<std::uint8_t>(fast ? half : std::int64_t{1} << out.wire_shift);
        }
        out.wire_bytes = static_cast<std::uint32_t>(bytes);
        program_.wire_bytes += bytes;
        program_.descriptors.push_back(out);
    }

    const ProgramCopy& asked_;
    CopyProgram& program_;
    CopyDescriptor base_;
    std::vector<Dimension> dims_;
    std::int64_t run_ = 0;
};

void cut_tiles(CopyProgram& program) {
    std::uint32_t descriptor = 0;
    for (std::int64_t at = 0; at < program.wire_bytes; at += CopyProgram::kTileBytes) {
        while (program.descriptors[descriptor].wire_end() <= at) {
            ++descriptor;
        }
        program.tiles.push_back(descriptor);
    }
    program.tiles.push_back(static_cast<std::uint32_t>(std::max<std::size_t>(program.descriptors.size(), 1) - 1));
}

}  // namespace

Result<CopyProgram> compile_program(std::span<const ProgramCopy> copies) {
    CopyProgram program;
    for (const ProgramCopy& copy : copies) {
        Splitter(copy, program).emit_all();
    }
    if (program.descriptors.size() > std::numeric_limits<std::uint32_t>::max() / 2) {
        return Status(StatusCode::kResourceExhausted,
                      fmt::format("a copy of {} pieces is too much for one launch; use smaller chunks",
                                  program.descriptors.size()));
    }
    cut_tiles(program);
    return program;
}

}  // namespace sluice

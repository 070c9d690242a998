#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/base/strided_copy.h"
#include "runtime/cuda/copy_descriptor.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

/// One copy of a program, as callers know it. With `from` != `to` the elements are converted, `copy.item` is size_of(from) and
/// can_convert() holds.
struct ProgramCopy {
    StridedCopy copy;  ///< Its walking order is the order of the wire form.
    CopyBase source_base = CopyBase::kAddress;
    CopyBase target_base = CopyBase::kAddress;
    const std::byte* source = nullptr;  ///< What copy.src_offset counts from, with kAddress.
    std::byte* target = nullptr;
    DType from = DType::kU8;
    DType to = DType::kU8;
    std::uint32_t tag = 0;  ///< Kept with the descriptors.
};

/// Copies made ready for one launch of a kernel: descriptors in wire order, and for each tile of the wire form the first descriptor
/// that reaches into it. Made at set-up, by host code alone; what kernels see is a copy of it in device memory.
struct CopyProgram {
    /// What one block of a kernel moves in one turn.
    static constexpr std::int64_t kTileBytes = 32 << 10;

    std::vector<CopyDescriptor> descriptors;
    std::vector<std::uint32_t> tiles;  ///< One more than there are tiles; the last is the last descriptor.
    std::int64_t wire_bytes = 0;
    bool converts = false;
};

/// Wire form, gather buffers and slots must start at multiples of 16 bytes. Refuses nothing but strides or counts beyond what a
/// descriptor holds (more than 2^32 descriptors).
Result<CopyProgram> compile_program(std::span<const ProgramCopy> copies);

}  // namespace sluice

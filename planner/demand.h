#pragma once

#include "planner/ids.h"
#include "runtime/base/dtype.h"
#include "runtime/base/shape.h"
#include "runtime/base/strided_copy.h"

#include <string>
#include <vector>

namespace sluice {

/// A parameter of a worker, in load layout: what its loader writes. Local (per-rank) shape.
struct Parameter {
    std::string name;
    DType dtype = DType::kBF16;
    Dims shape;

    [[nodiscard]] std::int64_t bytes() const { return num_elements(shape) * size_of(dtype); }
};

/// What the dry run saw: a region of a checkpoint tensor is copied to a strided box of a parameter.
/// `copy` is in bytes: source offsets in the full, contiguous checkpoint tensor; destination offsets in the contiguous
/// parameter. `copy.item` is one element of `source_dtype` (as it was viewed) when no conversion is needed. When
/// source_dtype != parameter_dtype the copy converts: source strides count source bytes, destination strides destination bytes, `item` is the
/// source element's size.
struct CopyRecord {
    TensorId tensor = 0;
    ParameterId parameter = 0;
    DType source_dtype = DType::kBF16;
    DType parameter_dtype = DType::kBF16;
    StridedCopy copy;

    [[nodiscard]] bool converts() const { return source_dtype != parameter_dtype; }
};

/// A box of a parameter that the loader fills itself with zeros (vocabulary padding, a bias zeroed on some ranks).
/// `box` uses the destination side of a StridedCopy only.
struct ZeroFill {
    ParameterId parameter = 0;
    StridedCopy box;
};

/// All that one distinct rank of a pool wants: its parameters and where each byte of them comes from.
struct Demand {
    std::vector<Parameter> parameters;
    std::vector<CopyRecord> records;
    std::vector<ZeroFill> fills;
    /// Parameters that the trainer does not provide (position buffers, expert maps): never written by a sync.
    std::vector<ParameterId> not_from_trainer;
};

}  // namespace sluice

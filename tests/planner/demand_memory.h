#pragma once

#include "planner/demand.h"
#include "tests/planner/naive_tensor.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sluice::test {

/// A demand carried out on bookkeeping instead of bytes: for every element of a parameter (by element number) the
/// origins that were written to it, in order. A fill is the origin kZero. Written apart from the copy engine.
inline constexpr Origin kZero{-1, DType::kU8, 0};

class DemandMemory {
public:
    explicit DemandMemory(const Demand& demand) : demand_(demand), memory_(demand.parameters.size()) {
        for (std::size_t p = 0; p < memory_.size(); ++p) {
            memory_[p].resize(static_cast<std::size_t>(num_elements(demand.parameters[p].shape)));
        }
        for (const CopyRecord& record : demand.records) {
            write(record.parameter, record.copy, size_of(record.parameter_dtype),
                  [&](std::int64_t at) { return Origin{record.tensor, record.source_dtype, at}; });
        }
        for (const ZeroFill& fill : demand.fills) {
            write(fill.parameter, fill.box, fill.box.item, [](std::int64_t) { return kZero; });
        }
    }

    const std::vector<std::vector<Origin>>& parameter(std::size_t id) const { return memory_[id]; }
    /// Faults that no element shows: writes outside the parameter, or not at an element's border.
    const std::vector<std::string>& faults() const { return faults_; }

private:
    template <class OriginOf>
    void write(ParameterId id, const StridedCopy& copy, std::int64_t element, const OriginOf& origin_of) {
        std::vector<std::vector<Origin>>& memory = memory_[static_cast<std::size_t>(id)];
        std::int64_t count = 1;
        for (const std::int64_t size : copy.sizes) {
            count *= size;
        }
        for (std::int64_t n = 0; n < count; ++n) {
            std::int64_t src = copy.src_offset;
            std::int64_t dst = copy.dst_offset;
            std::int64_t rest = n;
            for (std::size_t d = copy.sizes.size(); d-- > 0;) {
                src += rest % copy.sizes[d] * copy.src_strides[d];
                dst += rest % copy.sizes[d] * copy.dst_strides[d];
                rest /= copy.sizes[d];
            }
            if (dst < 0 || dst % element != 0 || dst / element >= static_cast<std::int64_t>(memory.size())) {
                faults_.push_back(demand_.parameters[static_cast<std::size_t>(id)].name + ": write at byte " +
                                  std::to_string(dst));
                return;
            }
            memory[static_cast<std::size_t>(dst / element)].push_back(origin_of(src));
        }
    }

    const Demand& demand_;
    std::vector<std::vector<std::vector<Origin>>> memory_;
    std::vector<std::string> faults_;
};

}  // namespace sluice::test

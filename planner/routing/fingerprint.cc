#include "planner/routing/fingerprint.h"

#include "planner/plan_format.h"

#include <xxhash.h>

#include <array>
#include <string_view>
#include <vector>

namespace sluice {
namespace {

// Collects integers as little-endian bytes, so that all machines agree, and hashes them block by block.
class Hasher {
public:
    Hasher() { XXH3_64bits_reset(&state_); }

    Hasher& add(std::int64_t value) {
        std::array<unsigned char, 8> bytes;
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            bytes[i] = static_cast<unsigned char>(static_cast<std::uint64_t>(value) >> (8 * i));
        }
        block_.insert(block_.end(), bytes.begin(), bytes.end());
        if (block_.size() >= kBlock) {
            flush();
        }
        return *this;
    }
    Hasher& add(std::string_view text) {
        add(static_cast<std::int64_t>(text.size()));
        block_.insert(block_.end(), text.begin(), text.end());
        return *this;
    }
    template <class Range>
    Hasher& add_all(const Range& values) {
        add(static_cast<std::int64_t>(values.size()));
        for (const auto value : values) {
            add(static_cast<std::int64_t>(value));
        }
        return *this;
    }
    Hasher& add(const StridedCopy& copy) {
        add(copy.src_offset).add(copy.dst_offset).add(copy.item);
        return add_all(copy.sizes).add_all(copy.src_strides).add_all(copy.dst_strides);
    }
    std::uint64_t finish() {
        flush();
        return XXH3_64bits_digest(&state_);
    }

private:
    static constexpr std::size_t kBlock = 1 << 16;
    void flush() {
        XXH3_64bits_update(&state_, block_.data(), block_.size());
        block_.clear();
    }
    XXH3_state_t state_;
    std::vector<unsigned char> block_;
};

}  // namespace

std::uint64_t plan_fingerprint(const Catalogue& catalogue, std::span<const Ownership> owners,
                               std::span<const DemandRequest> demands, const RouteOptions& options) {
    Hasher hash;
    hash.add(kPlanFormatVersion).add(kFingerprintVersion).add(static_cast<std::int64_t>(catalogue.digest()));
    hash.add(options.chunk_bytes).add(static_cast<std::int64_t>(options.path));
    hash.add(options.direct_run).add(options.direct_piece);
    hash.add(static_cast<std::int64_t>(owners.size()));
    for (const Ownership& owner : owners) {
        hash.add(owner.stage).add_all(owner.segment_bytes).add_all(owner.gathered_bytes);
        hash.add(static_cast<std::int64_t>(owner.regions.size()));
        for (const OwnedRegion& region : owner.regions) {
            hash.add(region.tensor).add(region.segment).add(region.offset);
            hash.add_all(region.begin).add_all(region.end).add_all(region.strides);
            hash.add(region.fold.axis).add(region.fold.period).add(region.fold.stride);
        }
    }
    hash.add(static_cast<std::int64_t>(demands.size()));
    for (const DemandRequest& request : demands) {
        hash.add_all(request.workers).add_all(request.allowed_owners).add(request.self).add_all(request.mapped_owners);
        const Demand& demand = *request.demand;
        hash.add(static_cast<std::int64_t>(demand.parameters.size()));
        for (const Parameter& parameter : demand.parameters) {
            hash.add(parameter.name).add(static_cast<std::int64_t>(parameter.dtype)).add_all(parameter.shape);
        }
        hash.add(static_cast<std::int64_t>(demand.records.size()));
        for (const CopyRecord& record : demand.records) {
            hash.add(record.tensor).add(record.parameter).add(static_cast<std::int64_t>(record.source_dtype));
            hash.add(static_cast<std::int64_t>(record.parameter_dtype)).add(record.copy);
        }
        hash.add(static_cast<std::int64_t>(demand.fills.size()));
        for (const ZeroFill& fill : demand.fills) {
            hash.add(fill.parameter).add(fill.box);
        }
        hash.add_all(demand.not_from_trainer);
    }
    return hash.finish();
}

}  // namespace sluice

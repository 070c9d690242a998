#pragma once

#include "trainer/weight_source.h"

#include <utility>
#include <vector>

namespace sluice {

/// Weights that stay in memory: all groups are readable at once, in place.
class ResidentSource : public WeightSource {
public:
    explicit ResidentSource(std::vector<Segment> segments) : segments_(std::move(segments)) {}

    [[nodiscard]] std::span<const Segment> segments() const override { return segments_; }
    [[nodiscard]] bool gathers() const override { return false; }
    Status gather(std::uint64_t /*version*/, GroupId group, std::span<std::byte> /*buffer*/,
                  Deadline /*deadline*/) override {
        return internal_error("a resident source was asked to gather group " + std::to_string(group));
    }

private:
    std::vector<Segment> segments_;
};

}  // namespace sluice

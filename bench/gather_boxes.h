#pragma once

#include "bench/relay.h"
#include "planner/catalogue.h"
#include "planner/ownership.h"
#include "runtime/base/strided_copy.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace sluice::bench {

/// A box of a tensor that trainer ranks hold.
struct Box {
    struct Owner {
        int rank = 0;
        /// From the owner's memory to the full tensor, coalesced. Owners differ in offsets only (their strides are those of
        /// one cut), so that all walk the box in one order.
        StridedCopy copy;
    };
    TensorId tensor = 0;
    std::vector<Owner> owners;  // by rank

    [[nodiscard]] std::int64_t bytes() const { return owners.front().copy.bytes(); }
    [[nodiscard]] const Owner* owner(int rank) const;
};

/// What all ranks of a trainer hold together, each distinct box once, by tensor.
std::vector<Box> distinct_boxes(const Catalogue& catalogue, std::span<const Ownership> owners);

/// A message of boxes that go the same way.
struct BoxMessage {
    RelayMessage message;
    std::vector<const Box*> boxes;
};

/// Adds `box` to the last message at or after `first` that goes along `chain`, or to a new one if that would get longer than `most`.
void add_box(std::vector<BoxMessage>& out, std::size_t first, const std::vector<int>& chain, const Box& box,
             std::int64_t most);

/// The message's boxes from the memory of the rank that it starts at, one after the other.
void pack_boxes(const BoxMessage& message, const std::byte* memory, std::span<std::byte> out);
/// From a message to the full tensors, which lie where `place` says.
void unpack_boxes(const BoxMessage& message, std::span<const std::byte> in,
                  const std::function<std::byte*(TensorId)>& place);

}  // namespace sluice::bench

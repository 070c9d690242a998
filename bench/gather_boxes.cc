#include "bench/gather_boxes.h"

#include "runtime/services/copy_engine.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace sluice::bench {

const Box::Owner* Box::owner(int rank) const {
    const auto found =
        std::find_if(owners.begin(), owners.end(), [&](const Owner& owner) { return owner.rank == rank; });
    return found == owners.end() ? nullptr : &*found;
}

std::vector<Box> distinct_boxes(const Catalogue& catalogue, std::span<const Ownership> owners) {
    std::map<std::tuple<TensorId, Dims, Dims>, Box> boxes;
    for (std::size_t rank = 0; rank < owners.size(); ++rank) {
        for (const OwnedRegion& region : owners[rank].regions) {
            const CatalogueTensor& tensor = catalogue[region.tensor];
            StridedCopy copy = region_copy(region, tensor.shape, size_of(tensor.dtype));
            std::swap(copy.src_offset, copy.dst_offset);
            std::swap(copy.src_strides, copy.dst_strides);
            Box& box = boxes[{region.tensor, region.begin, region.end}];
            box.tensor = region.tensor;
            box.owners.push_back({static_cast<int>(rank), coalesce(copy)});
        }
    }
    std::vector<Box> out;
    for (auto& entry : boxes) {
        out.push_back(std::move(entry.second));
    }
    return out;
}

void add_box(std::vector<BoxMessage>& out, std::size_t first, const std::vector<int>& chain, const Box& box,
             std::int64_t most) {
    for (std::size_t i = out.size(); i-- > first;) {
        BoxMessage& last = out[i];
        if (last.message.chain == chain) {
            if (last.message.bytes + box.bytes() > most) {
                break;
            }
            last.message.bytes += box.bytes();
            last.boxes.push_back(&box);
            return;
        }
    }
    out.push_back({{chain, box.bytes()}, {&box}});
}

void pack_boxes(const BoxMessage& message, const std::byte* memory, std::span<std::byte> out) {
    std::int64_t at = 0;
    for (const Box* box : message.boxes) {
        strided_copy(packed_from_source(box->owner(message.message.chain.front())->copy, at), memory, out.data());
        at += box->bytes();
    }
}

void unpack_boxes(const BoxMessage& message, std::span<const std::byte> in,
                  const std::function<std::byte*(TensorId)>& place) {
    std::int64_t at = 0;
    for (const Box* box : message.boxes) {
        strided_copy(destination_from_packed(box->owners.front().copy, at), in.data(), place(box->tensor));
        at += box->bytes();
    }
}

}  // namespace sluice::bench

#include "planner/trainer_ownership.h"

#include "planner/trainer_rules/rank_storage.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

// Replaces the shards of tensors that get gathered by the whole boxes, laid out one after the other in their group's buffer.
std::vector<OwnedRegion> offer_gathered(const Catalogue& catalogue, RankStorage&& storage,
                                        std::vector<std::int64_t>& group_bytes) {
    std::vector<OwnedRegion> out;
    group_bytes.assign(static_cast<std::size_t>(catalogue.groups()), 0);
    auto shard = storage.regions.begin();
    auto whole = storage.gathered.begin();
    while (shard != storage.regions.end() || whole != storage.gathered.end()) {
        if (whole == storage.gathered.end() || (shard != storage.regions.end() && shard->tensor < whole->tensor)) {
            out.push_back(std::move(*shard++));
            continue;
        }
        while (shard != storage.regions.end() && shard->tensor == whole->tensor) {
            ++shard;
        }
        Dims shape;
        for (std::size_t d = 0; d < whole->begin.size(); ++d) {
            shape.push_back(whole->end[d] - whole->begin[d]);
        }
        const CatalogueTensor& tensor = catalogue[whole->tensor];
        std::int64_t& end = group_bytes[static_cast<std::size_t>(tensor.group)];
        const std::int64_t item = size_of(tensor.dtype);
        out.push_back({whole->tensor, std::move(whole->begin), std::move(whole->end), kGatheredSegment, end,
                       contiguous_strides(shape, item)});
        end = aligned(end + num_elements(shape) * item);
        ++whole;
    }
    return out;
}

}  // namespace

Result<Ownership> trainer_ownership(const Catalogue& catalogue, const ModelConfig& config, const TrainerLayout& layout,
                                    int rank, SourceKind source) {
    SLUICE_ASSIGN_OR_RETURN(RankStorage storage, rank_storage(catalogue, config, layout, rank));
    Ownership out;
    out.stage = storage.stage;
    out.segment_bytes = {storage.bytes};
    if (source == SourceKind::kGathered && !storage.gathered.empty()) {
        out.regions = offer_gathered(catalogue, std::move(storage), out.gathered_bytes);
    } else {
        out.regions = std::move(storage.regions);
    }
    return out;
}

}  // namespace sluice

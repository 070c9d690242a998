#pragma once

#include "planner/demand.h"
#include "planner/ids.h"
#include "runtime/base/strided_copy.h"

#include <cstdint>
#include <vector>

namespace sluice {

/// How a chunk's bytes get from the owner into the worker.
enum class Path : std::uint8_t {
    kDirect,  ///< One-sided reads of the owner's published memory.
    kPacked,  ///< The owner packs into a serve slot; the worker reads the slot once.
    kMapped,  ///< The owner's memory is mapped into the worker, which copies from it.
};

/// One strided piece of a chunk. `copy` is coalesced: source offsets are bytes in the owner's `segment`, destination
/// offsets bytes in the parameter. Conversion as in CopyRecord: item is then one source element.
struct Piece {
    ParameterId parameter = 0;
    SegmentId segment = 0;
    DType source_dtype = DType::kBF16;
    DType parameter_dtype = DType::kBF16;
    StridedCopy copy;

    [[nodiscard]] bool converts() const { return source_dtype != parameter_dtype; }
    /// The dtype on the wire: the narrower of the two (equal size: they are the same).
    [[nodiscard]] DType wire_dtype() const {
        return size_of(source_dtype) <= size_of(parameter_dtype) ? source_dtype : parameter_dtype;
    }
    [[nodiscard]] std::int64_t wire_bytes() const {
        return converts() ? copy.items() * size_of(wire_dtype()) : copy.bytes();
    }
};

/// The unit of one request: pieces of one group from one owner, in the order of their destinations, of a direct chunk in that of the owner's
/// memory. The wire form of a chunk is its pieces in order, each in destination order without gaps, in wire dtype; wire_bytes <= chunk_bytes
/// of the plan options.
struct Chunk {
    GroupId group = 0;
    int owner = 0;  ///< Trainer rank.
    Path path = Path::kDirect;
    std::int64_t wire_bytes = 0;
    std::vector<Piece> pieces;
    /// Other trainer ranks that own all of the chunk's source bytes, and could serve it.
    std::vector<int> alternates;
    /// Those of them in whose memory the bytes lie exactly where they lie in the owner's: a reader may turn to any of them.
    std::vector<int> mirrors;
};

/// What one demand pulls: chunks in the order in which it reads them (interleaved group order, see GroupOrder).
struct Route {
    std::vector<Chunk> chunks;
    /// Worker ranks (counted within the worker side) that share this demand: one per replica.
    std::vector<int> workers;
};

/// An owner's side of a chunk: `pieces` say what to read of its segments and in which order; their destination side is not used.
struct ServedChunk {
    ChunkId id = 0;  ///< Its number in the route of the demand.
    GroupId group = 0;
    Path path = Path::kDirect;
    std::int64_t wire_bytes = 0;
    std::vector<Piece> pieces;
};

/// What one owner serves to one demand, in the order in which the demand reads it.
struct ServedDemand {
    DemandId demand = 0;
    std::vector<int> workers;  ///< As in Route: the ranks that share the demand.
    std::vector<ServedChunk> chunks;
};

/// All that one owner serves.
struct OwnerRoute {
    std::vector<ServedDemand> demands;  ///< Those that read anything of this owner.
    std::vector<GroupId>
        group_order;  ///< Groups of which this owner serves anything, in the order in which it publishes them.
};

/// What every rank needs to know of a compiled plan.
struct Plan {
    std::vector<Route> routes;         // by DemandId
    std::vector<GroupId> group_order;  // the one order for everybody
    std::uint64_t fingerprint = 0;     // catalogue, layouts, expert map, format version
};

/// The owner's side of `plan` for trainer rank `owner`.
OwnerRoute owner_route(const Plan& plan, int owner);
/// The same for trainer ranks 0 to owners - 1, in one pass.
std::vector<OwnerRoute> owner_routes(const Plan& plan, int owners);

}  // namespace sluice

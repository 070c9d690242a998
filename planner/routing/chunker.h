#pragma once

#include "planner/plan.h"
#include "planner/router.h"
#include "planner/routing/owner_grid.h"

#include <cstdint>
#include <vector>

namespace sluice {

/// A piece with its owner decided.
struct RoutedPiece {
    Piece piece;
    std::int32_t group_position = 0;  ///< Of its group in the group order.
    GroupId group = 0;
    int owner = 0;
    OwnerSetId owners = 0;  ///< All ranks that own its bytes.
    Path path = Path::kDirect;
    OwnerSetId mirrors = 0;  ///< Those of `owners`, the owner included, in whose memory they lie at the same place.
};

/// By which path a piece should travel, seen alone. Direct where the owner's side is one run, or runs long enough to be worth a
/// read each; packed for the rest, and always where the owner has to narrow elements.
Path choose_path(const Piece& piece, const RouteOptions& options, bool mappable);

/// Sorts the pieces of one demand (those that are read directly by where they lie at the owner, so that a chunk of them can be one
/// read), joins neighbours, packs short ones that come together (see RouteOptions::direct_piece), and cuts
/// them into chunks of at most `chunk_bytes`, in the order in which they are read: by group order, and in a group one chunk of
/// each owner after the other, starting with another owner for each `rotation`.
std::vector<Chunk> make_chunks(std::vector<RoutedPiece> pieces, const RouteOptions& options, std::size_t rotation,
                               OwnerSets& sets);

}  // namespace sluice

#pragma once

#include "planner/catalogue.h"
#include "runtime/base/status.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/services/deadline.h"

#include <string>
#include <string_view>

namespace sluice {

/// For the router (rank `root`) while all other ranks are in receive_answering: finds the first place where the catalogue of
/// rank `rank`, called `their_name`, differs from its own, and says how (see difference_at). A handful of rounds of less than a KiB
/// each, however large the catalogues are.
Result<std::string> ask_for_difference(Bootstrap& bootstrap, int root, const Catalogue& catalogue, int rank,
                                       std::string_view their_name, Deadline deadline);

/// For all other ranks: the next message that `root` scatters, after the answers to all that it asks before.
Result<Bootstrap::Blob> receive_answering(Bootstrap& bootstrap, int root, const Catalogue& catalogue,
                                          Deadline deadline);

}  // namespace sluice

#pragma once

#include "planner/catalogue.h"
#include "planner/demand.h"
#include "planner/ownership.h"
#include "planner/plan.h"
#include "runtime/base/status.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// One encoding of the compiled plan, for the wire and for files: protobuf with packed streams inside the frame of plan_frame.h.
/// Encoding is deterministic. Decoding trusts nothing: it refuses (invalid argument, one line) truncated, altered and
/// impossible input, checks every number against the limits given, and allocates no more than the input justifies.

/// The world that a message must fit.
struct PlanLimits {
    int trainers = 0;
    int workers = 0;
    int groups = 0;
    std::int64_t chunk_bytes = 0;  ///< Of the RouteOptions.
};

std::string encode_demand(const Demand& demand);
Result<Demand> decode_demand(std::string_view bytes, const Catalogue& catalogue);

std::string encode_ownership(const Ownership& ownership);
Result<Ownership> decode_ownership(std::string_view bytes, const Catalogue& catalogue);

std::string encode_route(const Route& route);
/// `parameters` are those of the demand; `owners` (by trainer rank, segment sizes suffice, may be empty when not known) bound the
/// source side.
Result<Route> decode_route(std::string_view bytes, const PlanLimits& limits, std::span<const Parameter> parameters,
                           std::span<const Ownership> owners = {});

/// The destination side of the pieces is left out: after decoding it is the packed form of each piece alone.
std::string encode_owner_route(const OwnerRoute& route);
/// `own` is the ownership of the owner that decodes: every source byte must lie in its segments or group buffers.
Result<OwnerRoute> decode_owner_route(std::string_view bytes, const PlanLimits& limits, const Ownership& own);

/// A plan with all that is needed to explain it.
struct PlanFile {
    std::string model;
    std::string trainer_layout;
    std::vector<std::string> worker_layouts;
    std::uint64_t catalogue_digest = 0;
    PlanLimits limits;
    std::vector<Demand> demands;  ///< By DemandId.
    Plan plan;
    Catalogue catalogue = {};  ///< Makes the file tell all by itself; left out when empty.
};
std::string encode_plan_file(const PlanFile& file);
/// `catalogue` must be the one of the plan: another digest is refused.
Result<PlanFile> decode_plan_file(std::string_view bytes, const Catalogue& catalogue);
/// With the catalogue that the file holds; refuses a file that holds none.
Result<PlanFile> decode_plan_file(std::string_view bytes);

}  // namespace sluice
